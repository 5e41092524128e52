"""The metric files of a run: checked on the way in, appended without half lines, and read back with suspicion."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashreinforce_molt.shown import shown
from flashreinforce_molt.telemetry.metric_table import EVALUATION_METRICS, METRICS
from flashreinforce_molt.telemetry.run_directory import write_atomically

METRICS_FILE = "metrics.jsonl"
EVALUATION_FILE = "evaluation.jsonl"

_LARGEST_UPDATE = 2**53
_NAME = re.compile(r"[a-z][a-z0-9_]{0,79}")


def plain_number(name: str, value: Any, where: str) -> int | float | None:
    """`value` as a JSON number, or None for 'not measured'; anything else is refused by name."""
    value = _without_library_type(value)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: metric {name!r} must be a number or None, got {shown(value)}")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError(
            f"{where}: metric {name!r} is {shown(value)}, which is no number of JSON; give None if it was not measured"
        )
    return value


def validate_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """One line of `metrics.jsonl`: every metric of the table, then the environment's, all finite numbers or None."""
    update = _update_number(metrics.get("update"), "metrics", minimum=1)
    where = f"update {update}"
    missing = [metric.name for metric in METRICS if metric.name not in metrics]
    if missing:
        raise ValueError(
            f"{where}: missing metrics {', '.join(missing)}; give None for one that was not measured"
        )
    line: dict[str, Any] = {"update": update}
    for metric in METRICS[1:]:
        line[metric.name] = plain_number(metric.name, metrics[metric.name], where)
    for name, value in metrics.items():
        if name in line:
            continue
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{where}: metric name {name!r} must be lower case letters, digits and underscores"
            )
        line[name] = plain_number(name, value, where)
    return line


def validate_evaluation(result: Mapping[str, Any]) -> dict[str, Any]:
    """One line of `evaluation.jsonl`: the table's fields as numbers or None; further fields may be any JSON."""
    update = _update_number(result.get("update"), "evaluation", minimum=0)
    where = f"evaluation at update {update}"
    missing = [metric.name for metric in EVALUATION_METRICS if metric.name not in result]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}; give None for one that was not measured")
    line: dict[str, Any] = {"update": update}
    for metric in EVALUATION_METRICS[1:]:
        line[metric.name] = plain_number(metric.name, result[metric.name], where)
    for name, value in result.items():
        if name not in line:
            line[str(name)] = value
    return line


def _without_library_type(value: Any) -> Any:
    """The Python number in a scalar of numpy or torch; anything else as it is."""
    if isinstance(value, (int, float)) or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (TypeError, ValueError, RuntimeError):
        return value


def _update_number(value: Any, where: str, *, minimum: int) -> int:
    value = _without_library_type(value)
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST_UPDATE:
        raise ValueError(f"{where}: 'update' must be an integer of at least {minimum}, got {shown(value)}")
    return value


class MetricsLog:
    """Appends one line per update to `metrics.jsonl`, and evaluations to `evaluation.jsonl`.

    A line reaches the file in one write or, when that fails (disk full), not at all. `resume_at=U` continues after
    update U: later lines, which the resumed run will write again, and a line cut off by a crash are removed first.
    """

    def __init__(self, run_dir: str | os.PathLike[str], resume_at: int | None = None) -> None:
        directory = Path(run_dir)
        self.metrics_path = directory / METRICS_FILE
        self.evaluation_path = directory / EVALUATION_FILE
        self._metrics_fd = self._evaluation_fd = -1
        self._evaluated: set[int] = set()
        if resume_at is None:
            for path in (self.metrics_path, self.evaluation_path):
                if path.exists() and path.stat().st_size > 0:
                    raise ValueError(
                        f"{path} already holds a run; choose another --output, or continue it with --resume"
                    )
            self._last_update: int | None = None
        else:
            self._last_update = self._cut_back_to(resume_at)
        self._metrics_fd = _open_for_append(self.metrics_path)
        try:
            self._evaluation_fd = _open_for_append(self.evaluation_path)
        except BaseException:
            self.close()
            raise

    def append(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Write one update; returns the validated line. ValueError names what is missing, not finite or out of order."""
        line = validate_metrics(metrics)
        if self._last_update is not None and line["update"] != self._last_update + 1:
            raise ValueError(
                f"{self.metrics_path}: update {line['update']} cannot follow update {self._last_update}"
            )
        _append_line(self._metrics_fd, self.metrics_path, line)
        self._last_update = line["update"]
        return line

    def append_evaluation(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write one evaluation; returns the validated line. An update is evaluated at most once."""
        line = validate_evaluation(result)
        if line["update"] in self._evaluated:
            raise ValueError(f"{self.evaluation_path}: update {line['update']} was already evaluated")
        _append_line(self._evaluation_fd, self.evaluation_path, line)
        self._evaluated.add(line["update"])
        return line

    def has_evaluation(self, update: int) -> bool:
        """Whether the evaluation after this update is already in the file (so that a resume need not repeat it)."""
        return update in self._evaluated

    def sync(self) -> None:
        """Force both files to the disk; call it before a checkpoint is committed, so that no resume finds a gap."""
        for descriptor in (self._metrics_fd, self._evaluation_fd):
            if descriptor >= 0:
                os.fsync(descriptor)

    def close(self) -> None:
        """Close both files; safe to call twice."""
        for name in ("_metrics_fd", "_evaluation_fd"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _cut_back_to(self, update: int) -> int:
        update = _update_number(update, "resume_at", minimum=0)
        kept = []
        if self.metrics_path.exists():
            record = read_metrics(self.metrics_path)
            kept = [line for line in record.lines if line["update"] <= update]
            last = kept[-1]["update"] if kept else 0
            if last != update:
                raise ValueError(
                    f"{self.metrics_path} ends at update {last}, but the run resumes after update {update}: the lines "
                    f"between are lost; resume from a checkpoint of update {last} or earlier, or move the file away "
                    f"to start a new record at update {update + 1}"
                )
            if len(kept) != len(record.lines) or record.cut_line is not None:
                _rewrite(self.metrics_path, kept)
            else:
                _end_last_line(self.metrics_path)
        if self.evaluation_path.exists():
            evaluations = read_evaluations(self.evaluation_path)
            kept = [line for line in evaluations.lines if line["update"] <= update]
            if len(kept) != len(evaluations.lines) or evaluations.cut_line is not None:
                _rewrite(self.evaluation_path, kept)
            else:
                _end_last_line(self.evaluation_path)
            self._evaluated = {line["update"] for line in kept}
        return update


@dataclass(frozen=True)
class Record:
    """The lines of a metrics or evaluation file."""

    lines: tuple[dict[str, Any], ...]
    cut_line: int | None = None
    """Number of a last line that a crash cut off; it is not among `lines`."""


def read_metrics(path: str | os.PathLike[str]) -> Record:
    """Read `metrics.jsonl`. A cut last line is reported; any other damage is a ValueError that names the line."""
    record = _read_lines(Path(path))
    expected: int | None = None
    for number, line in enumerate(record.lines, start=1):
        where = f"{path}, line {number}"
        update = _update_number(line.get("update"), where, minimum=1)
        if expected is not None and update != expected:
            kind = (
                "appears twice or out of order"
                if update < expected
                else f"follows update {expected - 1}: a gap"
            )
            raise ValueError(f"{where}: update {update} {kind}")
        expected = update + 1
        for metric in METRICS:
            plain_number(metric.name, line.get(metric.name), where)
    return record


def read_evaluations(path: str | os.PathLike[str]) -> Record:
    """Read `evaluation.jsonl`, with the same rules; updates rise, but need not be consecutive."""
    record = _read_lines(Path(path))
    previous = -1
    for number, line in enumerate(record.lines, start=1):
        where = f"{path}, line {number}"
        update = _update_number(line.get("update"), where, minimum=0)
        if update <= previous:
            raise ValueError(f"{where}: update {update} appears twice or out of order")
        previous = update
        for metric in EVALUATION_METRICS:
            plain_number(metric.name, line.get(metric.name), where)
    return record


def _read_lines(path: Path) -> Record:
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")  # a pipe would never end
    data = path.read_bytes()
    texts = data.split(b"\n")
    unfinished = texts.pop()  # what follows the last newline: empty, or a line that was never finished
    lines = [_parse(text, f"{path}, line {number}") for number, text in enumerate(texts, start=1)]
    if not unfinished.strip(b"\0 \t\r"):
        return Record(tuple(lines), len(lines) + 1 if unfinished else None)
    try:
        lines.append(_parse(unfinished, str(path)))
    except ValueError:
        return Record(tuple(lines), len(lines) + 1)
    return Record(tuple(lines))


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite_float)
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where}: not a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: not a JSON object but {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def _encode(line: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(line, allow_nan=False, separators=(", ", ": ")).encode("ascii") + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"update {line.get('update')}: cannot be written as JSON ({error})") from None


def _open_for_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _append_line(descriptor: int, path: Path, line: Mapping[str, Any]) -> None:
    if descriptor < 0:
        raise ValueError(f"{path} is closed")
    data = _encode(line)
    start = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError as error:
        os.ftruncate(descriptor, start)
        raise OSError(
            error.errno, f"cannot write update {line['update']} ({os.strerror(error.errno or 0)})", str(path)
        ) from error


def _rewrite(path: Path, lines: list[dict[str, Any]]) -> None:
    write_atomically(path, b"".join(_encode(line) for line in lines))


def _end_last_line(path: Path) -> None:
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        write_atomically(path, data + b"\n")
