"""Batches: what they refuse, how they split, what they count, how stale they are."""

from __future__ import annotations

import numpy as np
import pytest
from trajectory_examples import example

from flashreinforce_molt import TrajectoryBatch
from flashreinforce_molt.trajectory import PolicyLag


def of_length(trajectory_id: int, length: int):
    return example(
        trajectory_id=trajectory_id,
        tokens=np.arange(length),
        action_mask=np.arange(length) == 1,
        behavior_log_probs=[-1.0],
        policy_versions=[0],
        row_lengths=None,
    )


def test_an_empty_batch_and_a_repeated_trajectory_are_refused():
    with pytest.raises(ValueError, match="at least one trajectory"):
        TrajectoryBatch([])
    with pytest.raises(ValueError, match="trajectory 7 is in the batch twice"):
        TrajectoryBatch([example(), example(trajectory_id=8), example()])


def test_labels_are_given_to_all_trajectories_or_to_none():
    with pytest.raises(ValueError, match="failed: trajectory 7 has a label, trajectory 9 has none"):
        TrajectoryBatch([example(), example(trajectory_id=9, failed=None)])


def test_shards_are_whole_trajectories_of_like_length_with_ties_by_id():
    batch = TrajectoryBatch(
        [of_length(3, 5), of_length(1, 9), of_length(4, 2), of_length(2, 5), of_length(5, 3)]
    )
    shards = [[trajectory.trajectory_id for trajectory in shard] for shard in batch.split(2)]
    assert shards == [[1, 2], [3, 5], [4]]
    reversed_order = TrajectoryBatch(reversed(batch.trajectories))
    assert [[one.trajectory_id for one in shard] for shard in reversed_order.split(2)] == shards


def test_no_micro_batch_size_means_one_shard():
    batch = TrajectoryBatch([example(), example(trajectory_id=8)])
    assert batch.split(None) == [batch]
    with pytest.raises(ValueError, match="micro_batch_size=0"):
        batch.split(0)


def test_equal_rewards_that_float32_cannot_hold_still_have_themselves_as_baseline():
    batch = TrajectoryBatch([example(trajectory_id=number, reward=0.1) for number in range(3)])
    assert batch.totals().reward_mean == np.float32(0.1) == batch.padded().rewards[0].item()


def test_lag_is_split_into_in_flight_and_in_queue_over_policy_tokens():
    waited = example(trajectory_id=1, policy_versions=[3, 3, 4, 5], finished_version=5)
    fresh = of_length(2, 4)  # one policy token of version 0, finished at version 6
    lag = TrajectoryBatch([waited, fresh]).policy_lag(8)
    assert lag == PolicyLag(
        mean=(5 + 5 + 4 + 3 + 8) / 5, max=8, in_flight=(2 + 2 + 1 + 0 + 6) / 5, in_queue=(4 * 3 + 2) / 5
    )


def test_lag_on_policy_is_zero():
    lag = TrajectoryBatch([example(policy_versions=[6] * 4)]).policy_lag(6)
    assert lag == PolicyLag(mean=0, max=0, in_flight=0, in_queue=0)


def test_a_trajectory_of_the_future_is_refused():
    with pytest.raises(
        ValueError, match="trajectory 7: finished_version 6 is newer than the learner's version 5"
    ):
        TrajectoryBatch([example()]).policy_lag(5)
