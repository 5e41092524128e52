"""From hidden states, a chunk of tokens at a time: the full [N, V] logits never exist."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from flashreinforce_molt.logprobs.dense import chosen_log_probs_and_entropy


def chunked_log_probs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """[N, H] hidden states, [V, H] output weight, [N] tokens -> log-probs [N] and entropies [N].

    Equals `chosen_log_probs_and_entropy(F.linear(hidden, weight, bias), ...)` in values and gradients. The backward
    pass computes each chunk's logits again, so that memory holds [chunk_tokens, V] of them instead of [N, V].
    """
    if hidden.dim() != 2 or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"hidden {list(hidden.shape)} and targets {list(targets.shape)} must be [N, H] and [N]"
        )
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens} must be at least 1")
    of_chunk = partial(_of_chunk, dtype=weight.dtype, temperature=temperature, with_entropy=with_entropy)
    weight, bias = _summing_in_float32(weight), None if bias is None else _summing_in_float32(bias)
    chunks = [
        checkpoint(of_chunk, part, weight, bias, tokens, use_reentrant=False, preserve_rng_state=False)
        for part, tokens in zip(hidden.split(chunk_tokens), targets.split(chunk_tokens), strict=True)
    ]
    log_probs, entropies = zip(*chunks, strict=True)
    return torch.cat(log_probs), torch.cat(entropies) if with_entropy else None


def _summing_in_float32(parameter: Tensor) -> Tensor:
    """The same values, whose gradient autograd adds up in float32 over the chunks that share them.

    Hundreds of additions in bfloat16 would round most chunks away. Back to half precision the values are exact.
    """
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32))


def _of_chunk(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    dtype: torch.dtype,
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    logits = F.linear(hidden, weight.to(dtype), None if bias is None else bias.to(dtype))
    return chosen_log_probs_and_entropy(logits, targets, temperature=temperature, with_entropy=with_entropy)
