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
    """
    p = behavior_log_probs.exp().clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    q = log_probs.exp().clamp(PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR)
    return p * torch.log(p / q) + (1 - p) * torch.log((1 - p) / (1 - q))
