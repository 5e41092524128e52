"""Our entry in Molt's registry of advantage estimators."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from torch import Tensor

from flashreinforce_molt.molt.options import ESTIMATOR
from flashreinforce_molt.molt.registration import expect_parameters
from flashreinforce_molt.objective import BatchTotals, center_rewards


def trajectory_baseline(
    rewards: Tensor, groups: list[list[int]], context: Any
) -> tuple[list[Tensor], list[Tensor]]:
    """A_i = R_i - mean_j R_j (Eq. 5) over the trajectories of the whole batch, on every row and token of each.

    `rewards` [n] holds one reward per trajectory, because Molt merges the rows of a trajectory for the estimators
    that it counts as group estimators; Molt's own `flash_reinforce` averages over rows instead.
    """
    advantage_module = importlib.import_module("molt.trainer.algorithm.advantage")
    policy_tokens = sum(int(mask.sum()) for mask in context.action_masks)
    totals = BatchTotals.of_rewards(rewards.tolist(), max(policy_tokens, len(rewards)))
    returns = advantage_module.broadcast_advantages(center_rewards(rewards, totals.reward_mean), context)
    return [each.clone() for each in returns], returns


def extend(advantage_module: ModuleType) -> None:
    """Register with Molt's `molt.trainer.algorithm.advantage`, as an estimator that sees whole trajectories."""
    expect_parameters(advantage_module.register_advantage_estimator, "name")
    expect_parameters(advantage_module.broadcast_advantages, "rollout_advantages", "ctx")
    advantage_module.register_advantage_estimator(ESTIMATOR)(trajectory_baseline)
    count_as_group_estimator(advantage_module)


def count_as_group_estimator(module: ModuleType) -> None:
    """Let `module.GROUP_ADVANTAGE_ESTIMATORS` name our estimator."""
    vars(module)["GROUP_ADVANTAGE_ESTIMATORS"] = vars(module)["GROUP_ADVANTAGE_ESTIMATORS"] | {ESTIMATOR}
