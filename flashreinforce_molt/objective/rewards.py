"""Advantages without a critic."""

from __future__ import annotations

from torch import Tensor


def center_rewards(rewards: Tensor, mean: float | Tensor) -> Tensor:
    """A_i = R_i - mean_j R_j (Eq. 5): rewards [n] of trajectories, mean over the WHOLE batch (`BatchTotals`).

    No division by a standard deviation, no whitening, no group.
    """
    return (rewards - mean).detach()
