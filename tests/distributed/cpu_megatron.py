"""Real Megatron-Core on a CPU. It names its device "cuda" in places; here that means the CPU. Nothing is mocked.

`on_cpu()` redirects where tensors are made, and takes Megatron's own no-op random tracker (dropout is 0 anyway).
`cpu_layer_spec` replaces two modules that Megatron has only in Transformer Engine: a norm that knows sequence
parallelism, and attention over context-parallel ranks. Set FLASHREINFORCE_RANK_SETUP=cpu_megatron:on_cpu, with this
folder on PYTHONPATH, to run `--engine megatron` without a GPU.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def _is_cuda(device: Any) -> bool:
    return str(device).startswith("cuda")


class CudaMeansCpu(TorchFunctionMode):
    """device="cuda" makes a CPU tensor, and a CPU tensor's type string is that of CUDA, which clipping compares."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if function is torch.Tensor.to:
            args = tuple(
                CPU if isinstance(value, (str, torch.device)) and _is_cuda(value) else value for value in args
            )
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.") if ".cuda." not in result else result
        return result


def _already_on_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """What copying from a GPU would have returned."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


@dataclass(frozen=True)
class _OnlyStream:
    """A CPU does one thing after the other; Megatron's expert dispatcher still asks for streams and events."""

    def wait_stream(self, other: _OnlyStream) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self) -> _OnlyStream:
        return self


def on_cpu() -> None:
    """Redirect this process for good; for processes that do nothing else."""
    from megatron.core.tensor_parallel.random import initialize_rng_tracker
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = (
            None  # 0.16.1 asks for it without having set it when Transformer Engine is absent
        )
    token_dispatcher.maybe_move_tensor_to_cpu = _already_on_cpu
    torch.cuda.current_device = lambda: CPU
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.Stream = _OnlyStream
    torch.cuda.current_stream = lambda *a, **k: _OnlyStream()
    torch.cuda.stream = lambda stream: nullcontext()
    initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
    CudaMeansCpu().__enter__()


def on_cpu_with_pid_file() -> None:
    """`on_cpu` for a rank that a test will kill: leaves its process id as rank_N.pid in $RANK_PID_FOLDER."""
    on_cpu()
    folder = Path(os.environ["RANK_PID_FOLDER"])
    (folder / f"rank_{torch.distributed.get_rank()}.pid").write_text(str(os.getpid()))


class SequenceParallelRMSNorm(nn.RMSNorm):
    """Marks its weight, so that `finalize_model_grads` adds its gradient up over the tensor-parallel ranks."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel


class GatheredAttention(nn.Module):
    """Causal attention of this context-parallel rank's queries to the keys and values of all ranks."""

    def __init__(self, config: Any, layer_number: int, *_: Any, **__: Any) -> None:
        super().__init__()
        from megatron.core import parallel_state

        self.group = parallel_state.get_context_parallel_group()

    def forward(self, query, key, value, *_: Any, **__: Any):
        from megatron.core import tensor_parallel

        from flashreinforce_molt.learners.megatron.context import context_slots

        ranks, length = self.group.size(), query.shape[0]
        slots = [context_slots(ranks * length, ranks, rank) for rank in range(ranks)]
        if ranks > 1:
            key, value = (
                tensor_parallel.gather_from_sequence_parallel_region(part.contiguous(), group=self.group)
                for part in (key, value)
            )
        visible = slots[self.group.rank()][:, None] >= torch.cat(slots)[None]
        repeats = query.shape[2] // key.shape[2]
        key, value = key.repeat_interleave(repeats, 2), value.repeat_interleave(repeats, 2)
        out = F.scaled_dot_product_attention(
            *(part.permute(1, 2, 0, 3) for part in (query, key, value)), attn_mask=visible
        )
        return out.permute(2, 0, 1, 3).reshape(length, query.shape[1], -1)


def cpu_layer_spec(config: Any) -> Any:
    """Megatron's local layers with the two modules above."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec

    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    spec.layer_norm = SequenceParallelRMSNorm
    for layer in spec.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = SequenceParallelRMSNorm
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = GatheredAttention
        if config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = SequenceParallelRMSNorm
    return spec
