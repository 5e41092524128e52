"""The learning rate of every update."""

import pytest

from flashreinforce_molt.config import OptimConfig
from flashreinforce_molt.learners.schedule import learning_rate


def test_hand_computed_cosine_with_warm_up_and_floor() -> None:
    config = OptimConfig(lr=1.0, schedule="cosine", warmup_fraction=0.2, min_lr_fraction=0.1)
    rates = [learning_rate(config, update, 11) for update in range(11)]
    assert rates[:2] == [0.5, 1.0]
    assert rates[2] == 1.0
    assert rates[6] == pytest.approx(0.55)  # half way: the middle of 1.0 and 0.1
    assert rates[10] == pytest.approx(0.1)
    assert rates[2:] == sorted(rates[2:], reverse=True)


def test_constant_stays_at_the_peak_after_warm_up() -> None:
    config = OptimConfig(lr=3e-4, schedule="constant", warmup_fraction=0.02)
    assert [learning_rate(config, update, 100) for update in (0, 1, 2, 99)] == [1.5e-4, 3e-4, 3e-4, 3e-4]


def test_a_single_update_uses_the_peak() -> None:
    assert learning_rate(OptimConfig(lr=1e-6), 0, 1) == 1e-6
