"""Which rows of a batch make up one trajectory, and reductions from rows to trajectories."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrajectoryRows:
    """The rows [B] of a batch grouped into n trajectories, in order of first appearance."""

    index: Tensor
    """[B] position of each row's trajectory among the n trajectories."""
    first: Tensor
    """[n] first row of each trajectory."""

    def __len__(self) -> int:
        return self.first.numel()

    def sum(self, per_row: Tensor) -> Tensor:
        """[B] -> [n]: sum of each trajectory's rows."""
        return per_row.new_zeros(len(self)).index_add(0, self.index, per_row)

    def spread(self, per_trajectory: Tensor) -> Tensor:
        """[n] -> [B]: the value of each row's trajectory."""
        return per_trajectory[self.index]

    def policy_tokens(self, action_mask: Tensor) -> Tensor:
        """[B, T] -> [n]: T_i, the policy tokens of each trajectory over all its rows."""
        return self.sum(action_mask.sum(dim=1))

    def mean(self, values: Tensor, action_mask: Tensor) -> Tensor:
        """[B, T] -> [n]: (1/T_i) sum_t over the policy tokens of all rows of a trajectory (Eq. 7)."""
        return self.sum(torch.where(action_mask, values, 0).sum(dim=1)) / self.policy_tokens(action_mask)


def group_rows(trajectory_ids: Tensor | None, action_mask: Tensor) -> TrajectoryRows:
    """Group the rows of [B, T] `action_mask` by id; without ids every row is its own trajectory."""
    row = torch.arange(action_mask.shape[0], device=action_mask.device)
    if trajectory_ids is None:
        return TrajectoryRows(index=row, first=row)
    ids, inverse = torch.unique(trajectory_ids, return_inverse=True)
    first = row.new_full((ids.numel(),), row.numel()).scatter_reduce(0, inverse, row, "amin")
    by_appearance = first.argsort()
    return TrajectoryRows(index=by_appearance.argsort()[inverse], first=first[by_appearance])
