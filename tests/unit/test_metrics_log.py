"""The metric files: what may enter them, what a crash leaves, and what a resume makes of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from telemetry_example import example_evaluation, example_metrics, lines_of

from flashreinforce_molt.telemetry import METRICS, MetricsLog, read_evaluations, read_metrics


def written(directory: Path, updates: int) -> Path:
    with MetricsLog(directory) as log:
        for update in range(1, updates + 1):
            log.append(example_metrics(update))
            if update % 2 == 0:
                log.append_evaluation(example_evaluation(update, 0.5))
    return directory / "metrics.jsonl"


def test_every_update_is_one_line_that_is_on_disk_at_once(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        for update in (1, 2, 3):
            log.append(example_metrics(update))
            assert len(lines_of(tmp_path / "metrics.jsonl")) == update
    lines = lines_of(tmp_path / "metrics.jsonl")
    assert [line["update"] for line in lines] == [1, 2, 3]
    assert list(lines[0])[: len(METRICS)] == [metric.name for metric in METRICS]
    assert lines[0]["tool_calls_mean"] == pytest.approx(1.01)


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.append(example_metrics(1, entropy_mean=None))
    assert lines_of(tmp_path / "metrics.jsonl")[0]["entropy_mean"] is None


def test_scalars_of_numpy_are_numbers(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.append(example_metrics(1, reward_mean=np.float32(0.5), trajectories_total=np.int64(64)))
    line = lines_of(tmp_path / "metrics.jsonl")[0]
    assert (line["reward_mean"], line["trajectories_total"]) == (0.5, 64)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), 10**400])
def test_a_number_that_json_does_not_have_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    with MetricsLog(tmp_path) as log:
        with pytest.raises(ValueError, match="update 1: metric 'grad_norm'"):
            log.append(example_metrics(1, grad_norm=value))
        assert (tmp_path / "metrics.jsonl").read_bytes() == b""
        log.append(example_metrics(1))


@pytest.mark.parametrize("value", ["0.5", True, [1.0], np.ones(2)])
def test_what_is_no_number_is_refused_by_name(tmp_path: Path, value: Any) -> None:
    with MetricsLog(tmp_path) as log, pytest.raises(ValueError, match="'reward_mean' must be a number"):
        log.append(example_metrics(1, reward_mean=value))


def test_missing_metrics_are_named(tmp_path: Path) -> None:
    metrics = example_metrics(1)
    del metrics["lr"], metrics["wall_s"]
    with MetricsLog(tmp_path) as log, pytest.raises(ValueError, match="missing metrics lr, wall_s"):
        log.append(metrics)


@pytest.mark.parametrize("name", ["Tool calls", "tool-calls", "", "<script>", "x" * 81])
def test_names_of_environment_metrics_are_plain(tmp_path: Path, name: str) -> None:
    with MetricsLog(tmp_path) as log, pytest.raises(ValueError, match="lower case"):
        log.append({**example_metrics(1), name: 1.0})


def test_an_update_out_of_order_is_refused(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.append(example_metrics(1))
        with pytest.raises(ValueError, match="update 3 cannot follow update 1"):
            log.append(example_metrics(3))


def test_an_update_is_evaluated_once(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.append_evaluation(example_evaluation(0, 0.1, examples=[{"prompt": "abc", "response": "cba"}]))
        assert log.has_evaluation(0)
        with pytest.raises(ValueError, match="already evaluated"):
            log.append_evaluation(example_evaluation(0, 0.1))
        incomplete = example_evaluation(1, 0.1)
        del incomplete["greedy_accuracy"]
        with pytest.raises(ValueError, match="missing greedy_accuracy"):
            log.append_evaluation(incomplete)
        with pytest.raises(ValueError, match="cannot be written as JSON"):
            log.append_evaluation(example_evaluation(1, 0.1, extra=float("nan")))
    assert lines_of(tmp_path / "evaluation.jsonl")[0]["examples"][0]["response"] == "cba"


def test_a_second_run_does_not_write_into_the_first(tmp_path: Path) -> None:
    written(tmp_path, 2)
    with pytest.raises(ValueError, match="--resume"):
        MetricsLog(tmp_path)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with MetricsLog(tmp_path) as log:
        log.append(example_metrics(1))
        before = (tmp_path / "metrics.jsonl").read_bytes()

        def full(descriptor: int, data: bytes) -> int:
            if len(data) < 100:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data[:-50])

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"cannot write update 2 \(No space left on device\)") as caught:
            log.append(example_metrics(2))
        assert caught.value.filename == str(tmp_path / "metrics.jsonl")
        monkeypatch.undo()
        assert (tmp_path / "metrics.jsonl").read_bytes() == before
        log.append(example_metrics(2))
    assert len(read_metrics(tmp_path / "metrics.jsonl").lines) == 2


def test_a_resume_cuts_away_what_it_will_write_again(tmp_path: Path) -> None:
    path = written(tmp_path, 6)
    with MetricsLog(tmp_path, resume_at=3) as log:
        assert [line["update"] for line in lines_of(path)] == [1, 2, 3]
        assert log.has_evaluation(2)
        assert not log.has_evaluation(4)
        for update in (4, 5, 6, 7):
            log.append(example_metrics(update))
        log.append_evaluation(example_evaluation(4, 0.6))
    assert [line["update"] for line in read_metrics(path).lines] == list(range(1, 8))
    assert [line["update"] for line in read_evaluations(tmp_path / "evaluation.jsonl").lines] == [2, 4]


@pytest.mark.parametrize("keep", [1, 40, -1])
def test_a_resume_after_a_crash_in_the_middle_of_a_line_mends_the_file(tmp_path: Path, keep: int) -> None:
    path = written(tmp_path, 3)
    data = path.read_bytes()
    start = data.rindex(b"\n", 0, -1) + 1
    path.write_bytes(data[:start] + data[start:][:keep])
    after = 3 if keep == -1 else 2  # without its newline alone, the line is whole
    with MetricsLog(tmp_path, resume_at=after) as log:
        log.append(example_metrics(after + 1))
    record = read_metrics(path)
    assert record.cut_line is None
    assert [line["update"] for line in record.lines] == list(range(1, after + 2))


def test_a_resume_from_the_very_beginning_starts_an_empty_record(tmp_path: Path) -> None:
    written(tmp_path, 2)
    with MetricsLog(tmp_path, resume_at=0) as log:
        log.append(example_metrics(1))
    assert len(read_metrics(tmp_path / "metrics.jsonl").lines) == 1


def test_a_resume_that_would_leave_a_gap_is_refused(tmp_path: Path) -> None:
    written(tmp_path, 3)
    with pytest.raises(ValueError, match="ends at update 3, but the run resumes after update 5"):
        MetricsLog(tmp_path, resume_at=5)


def test_closing_twice_is_harmless_and_writing_after_it_is_an_error(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.sync()
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.append(example_metrics(1))


def test_reading_reports_a_cut_last_line(tmp_path: Path) -> None:
    path = written(tmp_path, 3)
    path.write_bytes(path.read_bytes() + b'{"update": 4, "reward_')
    record = read_metrics(path)
    assert (len(record.lines), record.cut_line) == (3, 4)


def test_reading_reports_zeros_that_a_crashed_machine_left_at_the_end(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    record = read_metrics(path)
    assert (len(record.lines), record.cut_line) == (2, 3)


def test_foreign_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1, "note": "text", "nested": {"a": [1]}, "reward_mean": 0.5}\n')
    assert read_metrics(path).lines[0]["note"] == "text"


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (b"", "line 2: not a JSON object"),
        (b'{"update": 2', "line 2: not a JSON object"),
        (b"[2]", "line 2: not a JSON object but list"),
        (b'{"reward_mean": 0.5}', "line 2: 'update' must be an integer"),
        (b'{"update": "2"}', "line 2: 'update' must be an integer"),
        (b'{"update": 1}', "line 2: update 1 appears twice"),
        (b'{"update": 4}', "line 2: update 4 follows update 1: a gap"),
        (b'{"update": 2, "lr": "fast"}', "line 2: metric 'lr' must be a number"),
        (b'{"update": 2, "lr": NaN}', "line 2: .*NaN"),
        (b'{"update": 2, "lr": 1e999}', "line 2: .*too large"),
        (b'{"update": 2, "lr": 1' + b"0" * 400 + b"}", "line 2: metric 'lr'"),
        (b'{"update": 1' + b"0" * 6000 + b"}", "line 2: "),
        (b'{"update": 2, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "line 2: nested too deeply"),
        (b"\xff\xfe", "line 2: not a JSON object"),
    ],
)
def test_a_broken_middle_line_is_named_with_its_number(tmp_path: Path, second: bytes, message: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"update": 1}\n' + second + b'\n{"update": 3}\n')
    with pytest.raises(ValueError, match=message) as caught:
        read_metrics(path)
    assert len(str(caught.value)) < 400


def test_evaluations_may_skip_updates_but_never_go_back(tmp_path: Path) -> None:
    path = tmp_path / "evaluation.jsonl"
    path.write_text('{"update": 0}\n{"update": 10}\n')
    assert len(read_evaluations(path).lines) == 2
    path.write_text('{"update": 10}\n{"update": 0}\n')
    with pytest.raises(ValueError, match="line 2: update 0 appears twice or out of order"):
        read_evaluations(path)
