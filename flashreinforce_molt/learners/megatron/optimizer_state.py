"""AdamW's moments, steps and float32 masters of Megatron's optimizers, in Hugging Face's layout.

The tensors have the names that `TorchLearner`'s checkpoints use (`exp_avg.3` belongs to the model's parameter 3), so
a checkpoint resumes under any parallel layout, and under the one-process learner too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor, nn

from flashreinforce_molt.learners.megatron.weights import HuggingFaceWeights

MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "master"
STEP = "step"


@dataclass(frozen=True)
class _Home:
    """Where this rank keeps the optimizer's part of a parameter."""

    optimizer: MegatronOptimizer
    main: Tensor | None
    """What the optimizer steps: the parameter, its float32 master, or a slice of that; None: other ranks hold it."""
    part: slice
    """The slice of the flattened parameter that `main` covers."""
    shared_over: dist.ProcessGroup | None
    """Ranks whose slices together cover the parameter."""

    @property
    def state(self) -> dict[str, Any]:
        return {} if self.main is None else self.optimizer.optimizer.state[self.main]


def state_tensors(
    optimizer: MegatronOptimizer, weights: HuggingFaceWeights, keep: bool = True
) -> dict[str, Tensor]:
    """All tensors on the CPU; empty before the first step. Collective; ranks with keep=False get nothing."""
    homes = _homes(optimizer, weights)
    steps = [0.0 if STEP not in home.state else float(home.state[STEP]) for home in homes.values()]
    steps += [float(group[STEP]) for group in optimizer.param_groups if STEP in group]
    step = torch.tensor(max(steps), device=next(iter(homes)).device)
    dist.all_reduce(step, dist.ReduceOp.MAX)
    number = {name: i for i, name in enumerate(weights.names)}
    tensors = {f"{STEP}.{i}": torch.tensor(step.item()) for i in number.values() if step > 0}
    for key in [*(MOMENTS if step > 0 else ()), *([MASTER] if _has_masters(homes) else [])]:
        for name, tensor in weights.export(partial(_whole, homes, key), torch.float32):
            if keep:
                tensors[f"{key}.{number[name]}"] = tensor.to("cpu", copy=True)
    return tensors if keep else {}


@torch.no_grad()
def load_state(optimizer: MegatronOptimizer, weights: HuggingFaceWeights, tensors: dict[str, Tensor]) -> None:
    """Give this rank its part of what `state_tensors` returned under any layout."""
    homes = _homes(optimizer, weights)
    number = {name: i for i, name in enumerate(weights.names)}
    steps = {float(tensor) for name, tensor in tensors.items() if name.startswith(f"{STEP}.")}
    if len(steps) > 1:
        raise ValueError(f"the optimizer's tensors are of several steps: {sorted(steps)}")
    for key in [key for key in (*MOMENTS, MASTER) if f"{key}.0" in tensors]:
        of_key = {name: tensors[f"{key}.{i}"] for name, i in number.items()}
        weights.load(of_key.__getitem__, partial(_store, homes, key))
    for step in steps:
        for home in homes.values():
            if home.main is not None:
                home.state[STEP] = torch.tensor(step)
        for group in optimizer.param_groups:
            if STEP in group:  # Transformer Engine's and Apex' AdamW count once for a group
                group[STEP] = int(step)


def _homes(optimizer: MegatronOptimizer, weights: HuggingFaceWeights) -> dict[nn.Parameter, _Home]:
    homes: dict[nn.Parameter, _Home] = {}
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if isinstance(part, DistributedOptimizer):
            for parameter in (parameter for buffer in part.buffers for parameter in buffer.params):
                if parameter not in part.model_param_group_index_map:
                    homes[parameter] = _Home(part, None, slice(0, 0), part.data_parallel_group)
                    continue
                group, place = part.model_param_group_index_map[parameter]
                span = part._get_model_param_range_map(parameter)["param"]
                main = part.optimizer.param_groups[group]["params"][place]
                homes[parameter] = _Home(part, main, slice(span.start, span.end), part.data_parallel_group)
            continue
        held = {id(main) for group in part.param_groups for main in group["params"]}
        for parameter in weights.parameters.values():
            main = getattr(parameter, "main_param", None)
            main = parameter if main is None else main
            if id(main) in held:
                homes[parameter] = _Home(part, main, slice(0, parameter.numel()), None)
    return homes


def _has_masters(homes: dict[nn.Parameter, _Home]) -> bool:
    return any(parameter.dtype != torch.float32 for parameter in homes)


def _whole(homes: dict[nn.Parameter, _Home], key: str, parameter: nn.Parameter) -> Tensor:
    """[parameter.shape] float32: what all data-parallel ranks together keep of a parameter."""
    home = homes[parameter]
    flat = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
    if home.main is not None:
        flat[home.part] = (home.main if key == MASTER else home.state[key]).detach().flatten().float()
    if home.shared_over is not None:
        dist.all_reduce(flat, group=home.shared_over)
    return flat.view(parameter.shape)


def _store(homes: dict[nn.Parameter, _Home], key: str, parameter: nn.Parameter, shard: Tensor) -> None:
    home = homes[parameter]
    if home.main is None:
        return
    values = shard.flatten()[home.part].view(home.main.shape)
    if key == MASTER:
        home.main.copy_(values)
    else:
        home.state[key] = values.to(device=home.main.device, dtype=torch.float32, copy=True)
