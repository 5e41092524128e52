"""What the loss counts over the whole batch before any gate, filter, split or shard."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real

from torch import Tensor

from flashreinforce_molt.objective.rows import group_rows
from flashreinforce_molt.shown import shown

_LARGEST_WHOLE = 2**63 - 1


@dataclass(frozen=True)
class BatchTotals:
    """The counts that every shard of one batch shares; each is taken once, over all trajectories.

    A shard (microbatch or data-parallel rank) holds whole trajectories. With the totals of its batch its loss is
    a partial sum: the losses of the shards add up to the loss of the batch, and so do their gradients.
    """

    trajectories: int
    """B, rejected trajectories included."""
    reward_mean: float
    """Baseline of Eq. 5: one reward per trajectory."""
    policy_tokens: int
    """Sum of T_i, the denominator of token-mean aggregation."""

    def __post_init__(self) -> None:
        for name in ("trajectories", "policy_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ValueError(f"totals.{name}={shown(value)} must be a whole number")
        if isinstance(self.reward_mean, bool) or not isinstance(self.reward_mean, Real):
            raise ValueError(f"totals.reward_mean={shown(self.reward_mean)} must be a number")
        if self.trajectories < 1:
            raise ValueError(
                f"totals.trajectories={shown(self.trajectories)}: a batch holds at least one trajectory"
            )
        if not -sys.float_info.max <= self.reward_mean <= sys.float_info.max:
            raise ValueError(f"totals.reward_mean={shown(self.reward_mean)} must be finite")
        if self.policy_tokens < self.trajectories:
            raise ValueError(
                f"totals.policy_tokens={shown(self.policy_tokens)}: each of the {self.trajectories} trajectories "
                "holds at least one policy token"
            )
        if self.trajectories * self.policy_tokens > _LARGEST_WHOLE:
            raise ValueError(
                f"totals.trajectories={shown(self.trajectories)} times totals.policy_tokens={shown(self.policy_tokens)} "
                "is more than the int64 of a denominator holds"
            )

    @classmethod
    def count(cls, rewards: Tensor, action_mask: Tensor, trajectory_ids: Tensor | None = None) -> BatchTotals:
        """Count a whole batch: rewards [B], action_mask [B, T], ids [B] of multi-row trajectories."""
        rows = group_rows(trajectory_ids, action_mask)
        return cls.of_rewards(rewards[rows.first].tolist(), int(action_mask.sum()))

    @classmethod
    def of_rewards(cls, rewards: list[float], policy_tokens: int) -> BatchTotals:
        """Totals of trajectories with these rewards; equal rewards have exactly their own value as mean."""
        if not all(map(math.isfinite, rewards)):
            raise ValueError(f"rewards must be finite, got {shown(rewards)}")
        return cls(
            trajectories=len(rewards),
            reward_mean=statistics.mean(rewards) if rewards else 0.0,
            policy_tokens=policy_tokens,
        )

    @classmethod
    def combine(cls, shards: Iterable[BatchTotals]) -> BatchTotals:
        """Totals of the batch whose shards were counted apart, for example one on each data-parallel rank."""
        shards = list(shards)
        trajectories = sum(shard.trajectories for shard in shards)
        reward_sum = sum(Fraction(shard.reward_mean) * shard.trajectories for shard in shards)
        return cls(
            trajectories=trajectories,
            reward_mean=float(reward_sum / max(trajectories, 1)),
            policy_tokens=sum(shard.policy_tokens for shard in shards),
        )
