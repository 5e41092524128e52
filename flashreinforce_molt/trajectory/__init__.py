"""What a rollout must record, and the tensors that the learner makes of it."""

from flashreinforce_molt.trajectory.batch import TrajectoryBatch
from flashreinforce_molt.trajectory.lag import PolicyLag
from flashreinforce_molt.trajectory.record import Row, Trajectory
from flashreinforce_molt.trajectory.storage import load_trajectories, save_trajectories
from flashreinforce_molt.trajectory.views import PackedRows, PaddedRows

__all__ = [
    "PackedRows",
    "PaddedRows",
    "PolicyLag",
    "Row",
    "Trajectory",
    "TrajectoryBatch",
    "load_trajectories",
    "save_trajectories",
]
