"""The learner on Megatron-Core: the same batch, the same gradient and the same step as `TorchLearner`, on many ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedConfig

from flashreinforce_molt.config import Config
from flashreinforce_molt.learners.megatron.architecture import (
    build_model,
    padded_vocab_size,
    transformer_config,
)
from flashreinforce_molt.learners.megatron.context import context_slots
from flashreinforce_molt.learners.megatron.groups import ParallelGroups
from flashreinforce_molt.learners.megatron.layout import MegatronLayout
from flashreinforce_molt.learners.megatron.loss import (
    LossSettings,
    megatron_loss_func,
    megatron_scoring_func,
    megatron_weighted_func,
)
from flashreinforce_molt.learners.megatron.microbatches import data_parallel_shards, row_shards
from flashreinforce_molt.learners.megatron.optimizer_state import load_state, state_tensors
from flashreinforce_molt.learners.megatron.reports import BatchReport, merge_reports
from flashreinforce_molt.learners.megatron.two_pass import weigh_batch
from flashreinforce_molt.learners.megatron.weights import HuggingFaceWeights
from flashreinforce_molt.learners.schedule import learning_rate
from flashreinforce_molt.learners.torch_learner import NonFiniteUpdateError, UpdateResult
from flashreinforce_molt.trajectory import PaddedRows, TrajectoryBatch


def initialize_parallel(layout: MegatronLayout) -> ParallelGroups:
    """Make Megatron's groups in an initialised `torch.distributed` world."""
    layout.data_parallel(dist.get_world_size())
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        context_parallel_size=layout.context_parallel,
        expert_model_parallel_size=layout.expert_parallel,
        expert_tensor_parallel_size=1,
    )
    return ParallelGroups.from_megatron()


@dataclass(frozen=True)
class _Step:
    """One microbatch of this rank: what the model reads and the loss function that follows it."""

    input_ids: Tensor
    position_ids: Tensor
    loss_func: Callable[[Tensor], tuple[Any, ...]]


class MegatronLearner:
    """One rank's part of the learner. Every method is collective: all ranks call it, with the same batch.

    Needs `initialize_parallel` first. Weights are not set until `weights.load`; `layer_spec` makes the layers from
    the `TransformerConfig` where neither Transformer Engine's nor Megatron's own are wanted.
    """

    def __init__(
        self,
        hf: PreTrainedConfig,
        config: Config,
        layout: MegatronLayout,
        *,
        groups: ParallelGroups,
        device: torch.device,
        layer_spec: Callable[[Any], Any] | None = None,
    ) -> None:
        self.config, self.layout, self.groups, self.device = config, layout, groups, device
        self.updates_done = 0
        dtype = getattr(torch, config.model.dtype)
        self.transformer_config = transformer_config(
            hf, layout, dtype=dtype, device=device, recompute=config.model.gradient_checkpointing
        )
        spec = layer_spec(self.transformer_config) if layer_spec else None
        # the local norms ignore params_dtype, and Megatron's optimizer state mixes up models of two dtypes
        model = build_model(self.transformer_config, hf, layout, spec).to(device=device, dtype=dtype)
        self.weights = HuggingFaceWeights(model, hf, padded_vocab_size(hf, layout))
        self.settings = LossSettings(
            groups=groups,
            calculate_per_token_loss=layout.calculate_per_token_loss,
            vocab_size=hf.vocab_size,
            temperature=config.rollout.temperature,
            chunk_tokens=config.train.logprob_chunk_tokens,
            objective=asdict(config.objective),
        )
        self.model = DistributedDataParallel(
            self.transformer_config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, use_distributed_optimizer=layout.distributed_optimizer
            ),
            model,
        )
        self.transformer_config.no_sync_func = self.model.no_sync
        self.transformer_config.finalize_model_grads_func = finalize_model_grads
        optim = config.optim
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=optim.lr,
                weight_decay=optim.weight_decay,
                adam_beta1=optim.beta1,
                adam_beta2=optim.beta2,
                adam_eps=optim.eps,
                clip_grad=optim.max_grad_norm,
                bf16=dtype == torch.bfloat16,
                params_dtype=dtype,
                use_distributed_optimizer=layout.distributed_optimizer,
            ),
            [self.model],
        )
        for group in self.optimizer.param_groups:  # Megatron leaves this to its own scheduler
            group["weight_decay"] = optim.weight_decay * group["wd_mult"]

    def load_weights(self, read: Callable[[str], Tensor]) -> None:
        """Take `read(hf_name)` as weights, and as the optimizer's float32 masters."""
        self.weights.load(read)
        self.optimizer.reload_model_params()

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face names and whole tensors, one at a time, on every rank."""
        return self.weights.export()

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Moments, steps and master weights in Hugging Face's layout, whatever the parallel layout; on rank 0."""
        return state_tensors(self.optimizer, self.weights, keep=dist.get_rank() == 0)

    def load_optimizer(self, tensors: dict[str, Tensor], updates_done: int) -> None:
        """Take what `optimizer_tensors` of any layout gave, and the number of updates behind it."""
        load_state(self.optimizer, self.weights, tensors)
        self.updates_done = updates_done

    def update(self, batch: TrajectoryBatch) -> UpdateResult:
        """Correct, trust and optimize with a fresh batch, the same on all ranks.

        Raises NonFiniteUpdateError on every rank, with weights and optimizer untouched, when the gradient is not finite.
        """
        report = self.accumulate_gradient(batch)
        lr = learning_rate(self.config.optim, self.updates_done, self.config.train.updates)
        grad_norm = self._step(report.loss, lr)
        self.updates_done += 1
        policy_tokens = batch.totals().policy_tokens
        return UpdateResult(report.loss, report.entropy_sum / policy_tokens, grad_norm, lr, report.stats)

    def accumulate_gradient(self, batch: TrajectoryBatch) -> BatchReport:
        """Put the gradient of the batch's loss into the gradient buffers."""
        self.model.train()
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        totals = batch.totals()
        rank, ranks = self.groups.dp.rank(), self.groups.dp.size()
        if self.layout.rows_per_microbatch is None:
            shards = data_parallel_shards(batch, ranks, self.config.train.micro_batch_size)[rank]
            parts = [None if shard is None else shard.padded().to(self.device) for shard in shards]
            loss_funcs = [
                partial(
                    megatron_loss_func,
                    rows=rows,
                    totals=totals,
                    num_microbatches=len(parts),
                    settings=self.settings,
                )
                for rows in parts
            ]
            return merge_reports(self._run(parts, loss_funcs), self.groups)
        parts = [
            None if rows is None else rows.to(self.device)
            for rows in row_shards(batch.padded(), self.layout.rows_per_microbatch, ranks)[rank]
        ]
        scoring = [partial(megatron_scoring_func, rows=rows, settings=self.settings) for rows in parts]
        with torch.no_grad():
            scores = self._run(parts, scoring, forward_only=True)
        weights, report = weigh_batch(parts, scores, totals, self.settings)
        weighted = [
            partial(
                megatron_weighted_func,
                rows=rows,
                weights=weight,
                num_microbatches=len(parts),
                settings=self.settings,
            )
            for rows, weight in zip(parts, weights, strict=True)
        ]
        self._run(parts, weighted)
        return report

    def _run(
        self, parts: list[PaddedRows | None], loss_funcs: list[Any], forward_only: bool = False
    ) -> list[dict[str, Any]]:
        steps = [self._step_of(rows, loss_func) for rows, loss_func in zip(parts, loss_funcs, strict=True)]
        return get_forward_backward_func()(
            forward_step_func=_forward_step,
            data_iterator=iter(steps),
            model=[self.model],
            num_microbatches=len(steps),
            seq_length=max(step.input_ids.shape[1] for step in steps) * self.groups.cp.size(),
            micro_batch_size=max(step.input_ids.shape[0] for step in steps),
            forward_only=forward_only,
        )

    def _step_of(self, rows: PaddedRows | None, loss_func: Any) -> _Step:
        """Inputs of this context-parallel rank, padded on the right, where causal attention never looks back at it."""
        multiple = self.layout.slot_multiple
        if rows is None:
            ids = torch.zeros(1, multiple, dtype=torch.long, device=self.device)
        else:
            ids = rows.input_ids[:, :-1]
            ids = F.pad(ids, (0, -ids.shape[1] % multiple))
        positions = torch.arange(ids.shape[1], device=self.device).expand_as(ids)
        cp = self.groups.cp
        slots = context_slots(ids.shape[1], cp.size(), cp.rank()).to(self.device)
        return _Step(ids[:, slots], positions[:, slots], loss_func)

    def _step(self, loss: float, lr: float) -> float:
        self.optimizer.prepare_grads()
        norm = float(self.optimizer.get_grad_norm())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.model.zero_grad_buffer()
            self.optimizer.zero_grad()
            raise NonFiniteUpdateError(
                f"update {self.updates_done + 1}: loss {loss}, gradient norm {norm}; no step was taken"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        return norm


def _forward_step(steps: Iterator[_Step], model: Any) -> tuple[Tensor, Callable[[Tensor], tuple[Any, ...]]]:
    step = next(steps)
    return model(step.input_ids, step.position_ids, None), step.loss_func
