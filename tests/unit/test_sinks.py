"""Where metrics go besides the run's own files."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from telemetry_example import example_evaluation, example_metrics

from flashreinforce_molt.telemetry import SinkGroup, TensorBoardSink, TrackioSink, WandbSink


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads from the directory."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_grouped_scalars(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for update in (1, 2):
        sink.log(update, example_metrics(update, reward_mean=update / 4, entropy_mean=None))
    sink.evaluation(2, example_evaluation(2, 0.75))
    read = scalars(tmp_path)  # before it is closed: readable while the run goes on
    sink.close()
    sink.close()
    assert read["reward/reward_mean"] == [(1, 0.25), (2, 0.5)]
    assert read["evaluation/sampled_accuracy"] == [(2, 0.75)]
    assert {"trust/acceptance_rate", "lag/lag_in_queue", "environment/tool_calls_mean"} <= set(read)
    assert "response/entropy_mean" not in read
    assert not any("update" in tag for tag in read)
    assert [path.name[:7] for path in tmp_path.iterdir()] == ["events."]


def test_tensorboard_forgets_what_a_resume_repeats(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path)
    for update in (1, 2, 3):
        first.log(update, example_metrics(update, reward_mean=0.0))
    first.close()
    second = TensorBoardSink(tmp_path, resume_at=1)
    second.log(2, example_metrics(2, reward_mean=1.0))
    second.close()
    assert scalars(tmp_path)["reward/reward_mean"] == [(1, 0.0), (2, 1.0)]


class Recorder:
    """A sink that remembers, and fails when told to."""

    def __init__(self, fails: bool = False) -> None:
        self.updates: list[int] = []
        self.evaluations: list[int] = []
        self.closed = 0
        self.fails = fails

    def log(self, update: int, metrics: Mapping[str, Any]) -> None:
        if self.fails:
            raise ConnectionError("no network")
        self.updates.append(update)

    def evaluation(self, update: int, result: Mapping[str, Any]) -> None:
        self.evaluations.append(update)

    def close(self) -> None:
        self.closed += 1


def test_a_failing_sink_is_reported_once_closed_and_left_out_while_the_others_go_on() -> None:
    said: list[str] = []
    good, bad = Recorder(), Recorder(fails=True)
    with SinkGroup([bad, good], said.append) as sinks:
        sinks.log(1, {})
        sinks.log(2, {})
        sinks.evaluation(2, {})
    assert (good.updates, good.evaluations, good.closed) == ([1, 2], [2], 1)
    assert bad.closed == 1
    assert said == ["Recorder failed and is left out from now on: ConnectionError: no network"]


def test_sinks_are_closed_when_the_run_fails() -> None:
    sink = Recorder()
    with pytest.raises(RuntimeError, match="run failed"), SinkGroup([sink], print):
        raise RuntimeError("run failed")
    assert sink.closed == 1


@pytest.mark.parametrize(("kind", "package"), [(WandbSink, "wandb"), (TrackioSink, "trackio")])
def test_a_missing_tracker_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"pip install {package}"):
        kind(tmp_path, project="p")


@pytest.mark.parametrize(("kind", "package"), [(WandbSink, "wandb"), (TrackioSink, "trackio")])
def test_a_tracker_gets_grouped_numbers_with_their_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, package: str
) -> None:
    calls: list[tuple[str, Any]] = []
    client = types.ModuleType(package)
    client.init = lambda **options: calls.append(("init", options))  # type: ignore[attr-defined]
    client.log = lambda values, step: calls.append(("log", (step, values)))  # type: ignore[attr-defined]
    client.finish = lambda: calls.append(("finish", None))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package, client)
    sink = kind(tmp_path / "run7", project="flash", config={"seed": 1})
    sink.log(3, {"update": 3, "reward_mean": 0.5, "entropy_mean": None})
    sink.close()
    sink.close()
    (_, options), logged, finished = calls
    assert (options["project"], options["name"], options["config"]) == ("flash", "run7", {"seed": 1})
    assert logged == ("log", (3, {"reward/reward_mean": 0.5}))
    assert finished == ("finish", None)
