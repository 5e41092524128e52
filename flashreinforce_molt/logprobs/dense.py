"""From logits that are already in memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def chosen_log_probs_and_entropy(
    logits: Tensor, targets: Tensor, *, temperature: float = 1.0, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """[..., V] logits and [...] tokens -> log-prob of each token, and the entropy of the distribution it came from.

    Half precision is promoted to float32, float64 kept. The temperature must be the sampler's. The entropy is over
    the full vocabulary and carries no gradient; a token masked with -inf contributes nothing.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature={temperature!r} must be positive and finite: the learner divides by it"
        )
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"targets have shape {list(targets.shape)}, expected {list(logits.shape[:-1])}")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1:
        logits = logits / temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    chosen = log_probs.gather(-1, targets[..., None]).squeeze(-1)
    return chosen, _entropy(log_probs) if with_entropy else None


@torch.no_grad()
def _entropy(log_probs: Tensor) -> Tensor:
    return torch.special.entr(log_probs.exp()).sum(dim=-1)
