"""Policy lag: how many versions the learner is ahead of the weights that sampled a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashreinforce_molt.trajectory.record import Trajectory


@dataclass(frozen=True)
class PolicyLag:
    """Versions, measured over policy tokens; mean = in_flight + in_queue."""

    mean: float
    max: int
    in_flight: float
    """Mean lag that arose before the trajectory ended: its last version minus the token's."""
    in_queue: float
    """Mean lag that arose while it waited for the learner."""

    @classmethod
    def measure(cls, trajectories: Sequence[Trajectory], learner_version: int) -> PolicyLag:
        """Lag of a batch at the update that the learner makes from `learner_version`."""
        for trajectory in trajectories:
            if trajectory.finished_version > learner_version:
                raise ValueError(
                    f"trajectory {trajectory.trajectory_id}: finished_version {trajectory.finished_version} "
                    f"is newer than the learner's version {learner_version}"
                )
        sampled = np.concatenate([trajectory.policy_versions for trajectory in trajectories])
        finished = np.repeat(
            [trajectory.finished_version for trajectory in trajectories],
            [trajectory.policy_tokens for trajectory in trajectories],
        )
        return cls(
            mean=float(np.mean(learner_version - sampled)),
            max=int(learner_version - sampled.min()),
            in_flight=float(np.mean(finished - sampled)),
            in_queue=float(np.mean(learner_version - finished)),
        )
