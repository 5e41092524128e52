"""How far the learner has moved from the behaviour policy: on one token, as ratio and as divergence."""

from __future__ import annotations

import torch
from torch import Tensor

# A sampled token's probability stays this far from 0 and 1 inside the drift (never inside the ratio), so that
# one certain or near-impossible token has a finite divergence.
PROBABILITY_FLOOR = 1e-6


def importance_ratio(log_ratio: Tensor, limit: float | None = None) -> Tensor:
    """rho_it = exp(log pi_it - log mu_it) (Eq. 1), the log-ratio clamped to +-limit where one is given.

    Differentiable; outside the clamp the gradient is zero.
    """
    return torch.exp(log_ratio if limit is None else log_ratio.clamp(-limit, limit))


@torch.no_grad()
def bernoulli_kl(log_probs: Tensor, behavior_log_probs: Tensor) -> Tensor:
    """d_it = p log(p/q) + (1-p) log((1-p)/(1-q)), p = mu_it, q = pi_it of the sampled token (Eq. 6).

    The divergence of "this token or any other": a lower bound of the divergence of the full categorical policies.
    It is 0 or more; where p is near q its two terms cancel and their rounding can leave less, which counts as 0.
    """
    p, other_p = _sampled_and_other(behavior_log_probs)
    q, other_q = _sampled_and_other(log_probs)
    return (p * torch.log(p / q) + other_p * torch.log(other_p / other_q)).clamp(min=0)


def _sampled_and_other(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """p and 1 - p, inside the floor; 1 - p by expm1, since in float32 a subtraction loses it where p is near 1."""
    floor = PROBABILITY_FLOOR
    return log_probs.exp().clamp(floor, 1 - floor), (-torch.expm1(log_probs)).clamp(floor, 1 - floor)
