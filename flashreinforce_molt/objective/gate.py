"""The trust region: which trajectories, or in an ablation which tokens, may move the policy."""

from __future__ import annotations

from torch import Tensor


def sequence_gate(sequence_kl: Tensor, delta: float) -> Tensor:
    """m_i = 1 if D_i <= delta else 0 (Eq. 8): [n] mean drifts -> [n] bool, one decision per whole trajectory.

    It bounds the mean drift, not a single ratio: `max_ratio` and `top_token_share` of the stats watch that.
    """
    return sequence_kl <= delta


def token_gate(drift: Tensor, delta: float) -> Tensor:
    """d_it <= delta for every token by itself: [B, T] -> [B, T] bool. The published ablation that collapsed."""
    return drift <= delta
