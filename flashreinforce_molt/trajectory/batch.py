"""A fresh batch of trajectories: the unit of one optimizer step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from flashreinforce_molt.objective import BatchTotals
from flashreinforce_molt.trajectory.lag import PolicyLag
from flashreinforce_molt.trajectory.record import Trajectory
from flashreinforce_molt.trajectory.views import PackedRows, PaddedRows


class TrajectoryBatch:
    """Trajectories that are trained together, once; also a shard of such a batch."""

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        self.trajectories = tuple(trajectories)
        if not self.trajectories:
            raise ValueError("a TrajectoryBatch needs at least one trajectory")
        seen: set[int] = set()
        for trajectory in self.trajectories:
            if trajectory.trajectory_id in seen:
                raise ValueError(f"trajectory {trajectory.trajectory_id} is in the batch twice")
            seen.add(trajectory.trajectory_id)
        self._validate_labels()

    def __len__(self) -> int:
        return len(self.trajectories)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    def padded(self, side: str = "right", pad_token_id: int = 0) -> PaddedRows:
        """One tensor row for each row, padded to the longest."""
        return PaddedRows.of(self.trajectories, side, pad_token_id)

    def packed(self) -> PackedRows:
        """All rows one after the other in a single tensor row, without padding."""
        return PackedRows.of(self.trajectories)

    def totals(self) -> BatchTotals:
        """Counts of this batch, for the losses of its shards."""
        return BatchTotals.of_rewards(
            [float(np.float32(trajectory.reward)) for trajectory in self],  # as the tensors hold them
            sum(trajectory.policy_tokens for trajectory in self),
        )

    def split(self, micro_batch_size: int | None = None) -> list[TrajectoryBatch]:
        """Shards of whole trajectories, alike in length so that little is padded; None: the batch as it is."""
        if micro_batch_size is None:
            return [self]
        if micro_batch_size < 1:
            raise ValueError(
                f"micro_batch_size={micro_batch_size} must be at least 1, or None for one microbatch"
            )
        by_length = sorted(self, key=lambda trajectory: (-max(trajectory.lengths), trajectory.trajectory_id))
        return [
            TrajectoryBatch(by_length[start : start + micro_batch_size])
            for start in range(0, len(by_length), micro_batch_size)
        ]

    def policy_lag(self, learner_version: int) -> PolicyLag:
        """Versions between the sampling of each policy token and this learner."""
        return PolicyLag.measure(self.trajectories, learner_version)

    def _validate_labels(self) -> None:
        labelled = [trajectory.trajectory_id for trajectory in self if trajectory.failed is not None]
        if labelled and len(labelled) < len(self):
            bare = next(trajectory.trajectory_id for trajectory in self if trajectory.failed is None)
            raise ValueError(
                f"failed: trajectory {labelled[0]} has a label, trajectory {bare} has none; label all or none"
            )
