"""Log-prob and entropy of chosen tokens from logits whose vocabulary is spread over tensor-parallel ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

# exp() of a shifted logit below this is 0 even in float64; clamping there keeps 0 * -inf out of the entropy.
_NOTHING = -1e4


def vocab_parallel_log_probs_and_entropy(
    logits: Tensor,
    targets: Tensor,
    tp_group: dist.ProcessGroup | None,
    *,
    vocab_size: int | None = None,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = True,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """This rank's [..., V/tp] logits and [...] tokens -> log-prob and entropy [...], the same on every rank.

    Equals `chosen_log_probs_and_entropy` of the gathered logits in values and gradients. One pass over the shard
    yields four numbers per token (maximum, sum of exponentials, mean shifted logit, target logit), one collective
    exchanges them, and the backward pass recomputes the probabilities from the logits, which stay as they are:
    beside them and their gradient, memory holds [chunk_tokens, V/tp] values, and backward may run again.

    Args:
        logits: shard of rank r: columns [r V/tp, (r+1) V/tp). Half precision is promoted to float32, float64 kept.
        targets: global token ids. One outside the vocabulary has the log-prob NaN, which the loss rejects by name
            in a policy slot and ignores elsewhere.
        tp_group: the tensor-parallel group; None says that the vocabulary is not sharded. It never means WORLD.
        vocab_size: true size where Megatron padded the vocabulary; padding has probability and gradient 0.
        temperature: the sampler's; the logits are divided by it.
        chunk_tokens: tokens whose float32 logits exist at the same time.
        with_entropy: False returns None for the entropy and saves a pass.
        entropy_gradient: let the entropy, over the full vocabulary, carry gradient; otherwise it is detached.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature={temperature!r} must be positive and finite: the learner divides by it"
        )
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"targets have shape {list(targets.shape)}, expected {list(logits.shape[:-1])}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens} must be at least 1")
    if entropy_gradient and not with_entropy:
        raise ValueError("entropy_gradient=True needs with_entropy=True")
    shard = _Shard.of(logits.shape[-1], tp_group, vocab_size)
    options = _Options(temperature, chunk_tokens, with_entropy, entropy_gradient)
    flat = logits.reshape(-1, logits.shape[-1])
    log_probs, entropies = _VocabParallel.apply(flat, targets.reshape(-1), shard, tp_group, options)
    return log_probs.view(targets.shape), entropies.view(targets.shape) if with_entropy else None


@dataclass(frozen=True)
class _Shard:
    """The columns of the vocabulary that this rank holds."""

    first: int
    size: int
    """Columns that are real tokens; the rest is padding."""
    vocab_size: int

    @classmethod
    def of(cls, columns: int, group: dist.ProcessGroup | None, vocab_size: int | None) -> _Shard:
        ranks, rank = (1, 0) if group is None else (group.size(), group.rank())
        held = ranks * columns
        if vocab_size is None:
            vocab_size = held
        if not 0 < vocab_size <= held:
            raise ValueError(
                f"vocab_size={vocab_size}: {ranks} tensor-parallel rank(s) with {columns} columns each hold {held}"
            )
        return cls(rank * columns, min(max(vocab_size - rank * columns, 0), columns), vocab_size)

    def places(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Which targets live here, and their local columns (0 for the others)."""
        here = (targets >= self.first) & (targets < self.first + self.size)
        return here, torch.where(here, targets - self.first, 0)


@dataclass(frozen=True)
class _Options:
    temperature: float
    chunk_tokens: int
    with_entropy: bool
    entropy_gradient: bool


class _VocabParallel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        shard: _Shard,
        group: dist.ProcessGroup | None,
        options: _Options,
    ) -> tuple[Tensor, Tensor | None]:
        local = _shard_statistics(logits, targets, shard, options)
        maxima, sums, shifted, picked = _exchange(local, group).unbind(1)

        maximum = maxima.amax(0)
        distance = ((maxima - maximum) / options.temperature).clamp_(min=_NOTHING)
        scale = distance.exp()
        total = (sums * scale).sum(0)
        log_total = total.log()
        log_probs = (picked.sum(0) - maximum) / options.temperature - log_total
        log_probs.masked_fill_((targets < 0) | (targets >= shard.vocab_size), math.nan)

        entropies = None
        if options.with_entropy:
            mean_shifted = ((shifted + distance * sums) * scale).sum(0) / total
            entropies = (log_total - mean_shifted).clamp_(min=0)
            if not options.entropy_gradient:
                ctx.mark_non_differentiable(entropies)
        ctx.shard, ctx.options = shard, options
        ctx.save_for_backward(
            logits, targets, maximum, log_total, entropies if options.entropy_gradient else None
        )
        ctx.set_materialize_grads(False)
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropies: Tensor | None) -> tuple:
        logits, targets, maximum, log_total, entropies = ctx.saved_tensors
        shard, options = ctx.shard, ctx.options
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(maximum)
        if not options.entropy_gradient:
            grad_entropies = None
        here, columns = shard.places(targets)
        on_target = torch.where(here, grad_log_probs, 0) / options.temperature
        on_all = grad_log_probs / (-log_total.exp() * options.temperature)

        grad = torch.empty_like(logits)
        grad[:, shard.size :] = 0
        for rows in _chunks(len(logits), options.chunk_tokens if shard.size else 0):
            out = grad[rows, : shard.size]
            exact = (
                out.dtype == maximum.dtype
            )  # else `values` is a copy in higher precision, free to be overwritten
            values = logits[rows, : shard.size].to(maximum.dtype)
            values = _shifted(values, maximum[rows], options, out if exact else values)
            curvature = None
            if grad_entropies is not None:
                # dH/dz_k = -p_k (log p_k + H) / T
                log_p = values.clamp(min=_NOTHING).sub_(log_total[rows, None])
                weight = grad_entropies[rows] / -options.temperature
                curvature = log_p.exp().mul_(weight[:, None]).mul_(log_p.add_(entropies[rows, None]))
            values.exp_().mul_(on_all[rows, None])
            if curvature is not None:
                values.add_(curvature)
            values.scatter_add_(1, columns[rows, None], on_target[rows, None])
            if not exact:
                out.copy_(values)
        return grad, None, None, None, None


def _shard_statistics(logits: Tensor, targets: Tensor, shard: _Shard, options: _Options) -> Tensor:
    """[4, N]: this shard's maximum, sum exp(z), sum z exp(z) and the target's logit; z = (logit - maximum) / T."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    statistics = torch.zeros(4, len(logits), dtype=dtype, device=logits.device)
    maximum, total, shifted, picked = statistics
    lowest = torch.finfo(dtype).min
    if not shard.size:
        maximum.fill_(lowest)
        return statistics
    real = logits[:, : shard.size]
    here, columns = shard.places(targets)
    picked.copy_(torch.where(here, real.gather(1, columns[:, None]).squeeze(1), 0))
    for rows in _chunks(len(logits), options.chunk_tokens):
        values = real[rows].to(dtype)
        maximum[rows] = values.amax(1).clamp_(min=lowest)
        values = _shifted(values, maximum[rows], options, None if dtype == logits.dtype else values)
        if options.with_entropy:
            weights = values.clamp_(min=_NOTHING).exp()
            total[rows] = weights.sum(1)
            shifted[rows] = values.mul_(weights).sum(1)
        else:
            total[rows] = values.exp_().sum(1)
    return statistics


def _shifted(logits: Tensor, maximum: Tensor, options: _Options, out: Tensor | None = None) -> Tensor:
    """(logits - maximum) / T, in new memory or in `out`."""
    values = torch.sub(logits, maximum[:, None], out=out)
    return values if options.temperature == 1 else values.div_(options.temperature)


def _exchange(local: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """[4, N] of this rank -> [tp, 4, N] of all."""
    if group is None or group.size() == 1:
        return local[None]
    gathered = local.new_empty(group.size(), *local.shape)
    dist.all_gather(list(gathered), local, group=group)
    return gathered


def _chunks(tokens: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, tokens, size)] if size else []
