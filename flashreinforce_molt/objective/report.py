"""Statistics of a loss call, and how those of several shards become those of their batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashreinforce_molt.objective.rows import TrajectoryRows

# Every statistic is of the trajectories that the call saw, a shard where totals were given; only the advantages
# already carry the baseline of the whole batch. These are the ways in which shards combine exactly.
_CONCATENATED = ("trajectory_ids", "advantages", "sequence_kl", "admitted")
_SUMMED = ("policy_tokens", "moved_tokens", "retained_tokens", "clamped_tokens", "absolute_weight")
_MAXIMAL = ("max_ratio", "max_ratio_before_gate", "largest_weight")


def loss_stats(
    rows: TrajectoryRows,
    action_mask: Tensor,
    admitted: Tensor,
    retained: Tensor,
    *,
    advantages: Tensor,
    sequence_kl: Tensor,
    log_ratio: Tensor,
    ratio: Tensor,
    weights: Tensor,
    log_ratio_limit: float | None,
    trajectory_ids: Tensor | None,
) -> dict[str, Any]:
    """What `flashreinforce_loss` returns beside the loss; `admitted` and `retained` are token masks [B, T].

    Per trajectory [n], in order of first appearance: advantages, sequence_kl, admitted (with the token gate: any
    of its tokens), trajectory_ids where given. acceptance_rate is the mean over trajectories of the share of policy
    tokens that the gate admits, so with the sequence gate the share of admitted trajectories. moved_tokens are those
    whose measured ratio is not exactly 1. retained_tokens are those left by gate and filter; max_ratio (as used, so
    clamped) and clamped_tokens are of these tokens, 0 when none is left; max_ratio_before_gate is of all policy
    tokens, unclamped. top_token_share is largest_weight / absolute_weight: |A_i| rho_it / denominator of one token in
    its sum over all.
    """
    admission = rows.mean(admitted.to(weights.dtype), action_mask)
    absolute = weights.abs()
    limit = math.inf if log_ratio_limit is None else log_ratio_limit
    stats = {
        "advantages": advantages,
        "sequence_kl": sequence_kl,
        "admitted": admission > 0,
        "acceptance_rate": admission.mean(),
        "policy_tokens": action_mask.sum(),
        "moved_tokens": (action_mask & (log_ratio != 0)).sum(),
        "retained_tokens": retained.sum(),
        "max_ratio": torch.where(retained, ratio, 0).amax(),
        "max_ratio_before_gate": torch.where(action_mask, log_ratio, -math.inf).amax().exp(),
        "clamped_tokens": (retained & (log_ratio.abs() > limit)).sum(),
        "absolute_weight": absolute.sum(),
        "largest_weight": absolute.amax(),
    }
    if trajectory_ids is not None:
        stats["trajectory_ids"] = trajectory_ids[rows.first]
    return stats | {"top_token_share": _share(stats["largest_weight"], stats["absolute_weight"])}


def merge_stats(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Statistics of a batch from those of its shards, as if the batch had been one call."""
    if not shards:
        raise ValueError("merge_stats needs the statistics of at least one shard")
    count = torch.stack([shard["acceptance_rate"].new_tensor(len(shard["admitted"])) for shard in shards])
    rates = torch.stack([shard["acceptance_rate"] for shard in shards])
    merged = {
        name: torch.cat([shard[name] for shard in shards]) for name in _CONCATENATED if name in shards[0]
    }
    merged |= {name: torch.stack([shard[name] for shard in shards]).sum(0) for name in _SUMMED}
    merged |= {name: torch.stack([shard[name] for shard in shards]).amax(0) for name in _MAXIMAL}
    return merged | {
        "acceptance_rate": (rates * count).sum() / count.sum(),
        "top_token_share": _share(merged["largest_weight"], merged["absolute_weight"]),
    }


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole, 0)
