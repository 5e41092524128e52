"""How far rollout may run ahead of the learner."""

import random

from flashreinforce_molt.rollout.pool import Bounds


def test_hand_computed_room() -> None:
    bounds = Bounds(batch_size=8, in_flight=12, queue_depth=2, max_policy_lag=None)
    assert bounds.may_issue(issued=0, dropped=0, taken=0, retired=0) == 12 + 16
    assert bounds.may_issue(issued=28, dropped=0, taken=8, retired=0) == 8
    assert bounds.may_issue(issued=28, dropped=3, taken=0, retired=0) == 3
    lagged = Bounds(batch_size=8, in_flight=100, queue_depth=2, max_policy_lag=1)
    assert lagged.may_issue(issued=0, dropped=0, taken=0, retired=0) == 16
    assert lagged.may_issue(issued=16, dropped=0, taken=8, retired=0) == 0
    assert lagged.may_issue(issued=16, dropped=0, taken=8, retired=8) == 8


def test_lag_zero_issues_one_batch_at_a_time() -> None:
    bounds = Bounds(batch_size=4, in_flight=64, queue_depth=3, max_policy_lag=0)
    assert bounds.may_issue(issued=0, dropped=0, taken=0, retired=0) == 4
    assert bounds.may_issue(issued=4, dropped=0, taken=4, retired=0) == 0
    assert bounds.may_issue(issued=4, dropped=0, taken=4, retired=4) == 4


def test_in_order_of_issue_no_trajectory_exceeds_the_lag() -> None:
    """A learner that takes trajectories in the order of their issue: the bound holds whatever the speeds."""
    for seed in range(50):
        rng = random.Random(seed)
        limit, size = rng.randrange(4), rng.randrange(2, 6)
        bounds = Bounds(
            size, in_flight=rng.randrange(1, 40), queue_depth=rng.randrange(1, 4), max_policy_lag=limit
        )
        version = issued = taken = 0
        sampled_at: list[int] = []
        for _ in range(300):
            if rng.random() < 0.7:
                room = bounds.may_issue(issued, 0, taken, retired=version * size)
                count = rng.randrange(room + 1)
                sampled_at += [version] * count
                issued += count
            elif issued - taken >= size:
                lags = [version - sampled_at[i] for i in range(taken, taken + size)]
                assert max(lags) <= limit
                taken += size
                version += 1
