"""The ledger: every trajectory has one fate."""

import json
import random

import pytest

from flashreinforce_molt.rollout.ledger import Ledger


def test_a_trajectory_cannot_be_trained_twice() -> None:
    ledger = Ledger()
    ledger.train([0, 2])
    with pytest.raises(
        RuntimeError, match="trajectory 2 has been settled already and would be trained again"
    ):
        ledger.train([1, 2])


def test_a_dropped_trajectory_cannot_be_trained() -> None:
    ledger = Ledger()
    ledger.drop(4, "policy_lag")
    with pytest.raises(RuntimeError, match="trajectory 4"):
        ledger.train([4])


def test_unsettled_names_what_was_issued_and_has_no_fate() -> None:
    ledger = Ledger()
    ledger.train([0, 1, 3])
    ledger.drop(5, "environment_error")
    assert ledger.unsettled(8) == [2, 4, 6, 7]
    assert (ledger.trained_total, ledger.dropped_total, ledger.settled_total) == (3, 1, 4)


def test_the_state_survives_json_in_any_order_of_events() -> None:
    rng = random.Random(0)
    ids = list(range(200))
    rng.shuffle(ids)
    ledger = Ledger()
    for i in ids[:150]:
        if i % 7 == 0:
            ledger.drop(i, f"reason {i % 2}")
        else:
            ledger.train([i])
    copy = Ledger.from_state(json.loads(json.dumps(ledger.state())))
    assert copy.state() == ledger.state()
    assert copy.unsettled(200) == sorted(ids[150:])


def test_a_state_that_does_not_add_up_is_refused() -> None:
    ledger = Ledger()
    ledger.train(range(5))
    with pytest.raises(ValueError, match=r"counts 6 .* lists 5"):
        Ledger.from_state({**ledger.state(), "trained_total": 6})


def test_a_batch_that_was_not_trained_after_all_is_counted_as_dropped_and_stays_settled() -> None:
    ledger = Ledger()
    ledger.train([0, 1, 2])
    ledger.train([3, 4])
    ledger.drop_trained(2, "nonfinite")
    assert (ledger.trained_total, ledger.dropped, ledger.settled_total) == (3, {"nonfinite": 2}, 5)
    assert Ledger.from_state(ledger.state()).unsettled(6) == [5]
    with pytest.raises(RuntimeError, match="4 trajectories were not trained, of 3"):
        ledger.drop_trained(4, "nonfinite")
