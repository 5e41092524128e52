"""Molt's experience maker merges the rows of a trajectory for our estimator."""

from __future__ import annotations

from types import ModuleType

from flashreinforce_molt.molt.estimator import count_as_group_estimator
from flashreinforce_molt.molt.registration import expect_parameters


def extend(experience_maker: ModuleType) -> None:
    """`molt.trainer.rollout.experience_maker` holds its own name for the set of group estimators."""
    maker = experience_maker.RemoteExperienceMaker
    expect_parameters(maker._merge_rollout_rewards, "self", "experiences")
    count_as_group_estimator(experience_maker)
