"""A run that is killed again and again loses nothing and trains nothing twice."""

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_every_trajectory_is_trained_once_or_counted_however_often_a_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    kill_test = sys.modules.get("kill_test") or __import__("kill_test")
    found, done = kill_test.kill_test(tmp_path / "run", kills=6, updates=60, seed=1)
    assert set(done) == {"worker", "learner", "group"}
    assert done.total() == 6
    assert found.faults(updates=60) == []
    assert found.trained == 60 * kill_test.BATCH
