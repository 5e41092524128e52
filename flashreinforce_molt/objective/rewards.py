"""Advantages without a critic."""

from __future__ import annotations

import torch
from torch import Tensor


def center_rewards(rewards: Tensor, mean: float | Tensor) -> Tensor:
    """A_i = R_i - mean_j R_j (Eq. 5): rewards [n] of trajectories, mean over the WHOLE batch (`BatchTotals`).

    No division by a standard deviation, no whitening, no group. Half precision is promoted to float32.
    """
    rewards = rewards.detach()
    return rewards.to(torch.promote_types(rewards.dtype, torch.float32)) - mean
