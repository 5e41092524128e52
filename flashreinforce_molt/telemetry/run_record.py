"""Reading a run directory back, without believing anything in it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashreinforce_molt.telemetry.metrics import (
    EVALUATION_FILE,
    METRICS,
    METRICS_FILE,
    read_evaluations,
    read_metrics,
)
from flashreinforce_molt.telemetry.redaction import REDACTED, is_secret_name, redact
from flashreinforce_molt.telemetry.run_directory import CONFIG_FILE, PROVENANCE_FILE

_MAX_PROVENANCE_BYTES = 4_000_000
_MAX_CONFIG_BYTES = 400_000
_MAX_SETTINGS = 2_000
_MAX_DEPTH = 8
_MAX_VALUE_LENGTH = 400
_ENDS = 0.05
"""Share of the updates at the beginning and at the end that 'first' and 'last' are means over."""


@dataclass(frozen=True)
class ShownSetting:
    """A setting as text, with its source where that is known."""

    value: str
    source: str = ""


@dataclass(frozen=True)
class RunRecord:
    """What a run directory holds."""

    path: Path
    metrics: tuple[dict[str, Any], ...]
    evaluations: tuple[dict[str, Any], ...]
    provenance: Mapping[str, Any]
    settings: Mapping[str, ShownSetting]
    notes: tuple[str, ...]
    """What is missing or damaged, in words."""
    _columns: dict[str, Sequence[float | None]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.path.absolute().name or str(self.path)

    def column(self, name: str) -> Sequence[float | None]:
        """One metric over the updates; None where it was not measured or is no number."""
        if name not in self._columns:
            self._columns[name] = [number_or_none(line.get(name)) for line in self.metrics]
        return self._columns[name]

    @property
    def updates(self) -> list[int]:
        return [line["update"] for line in self.metrics]

    def mean(self, name: str) -> float | None:
        """Mean of a metric over all updates."""
        return mean(self.column(name))

    def last(self, name: str) -> float | None:
        """Newest measured value of a metric."""
        return next((value for value in reversed(self.column(name)) if value is not None), None)

    @property
    def end_length(self) -> int:
        """Updates that `first_and_last` takes the means over."""
        return max(1, round(_ENDS * len(self.metrics)))

    def first_and_last(self, values: Sequence[float | None]) -> tuple[float | None, float | None]:
        """Means of a column at the beginning and at the end of the run."""
        return mean(values[: self.end_length]), mean(values[-self.end_length :])

    def idle_shares(self) -> list[float | None]:
        """Share of each step in which the learner waited."""
        pairs = zip(self.column("learner_idle_s"), self.column("step_s"), strict=True)
        return [min(1.0, idle / step) if idle is not None and step else None for idle, step in pairs]

    @property
    def idle_share(self) -> float | None:
        """Waiting time over step time, of the whole run."""
        pairs = zip(self.column("learner_idle_s"), self.column("step_s"), strict=True)
        known = [(idle, step) for idle, step in pairs if idle is not None and step]
        total = sum(step for _, step in known)
        return sum(idle for idle, _ in known) / total if total > 0 else None

    def text(self, *path: str) -> str:
        """A text of the provenance; empty if it is not there."""
        place: Any = self.provenance
        for key in path:
            place = place.get(key) if isinstance(place, Mapping) else None
        return "" if place is None or place == "" else value_text(place)

    def setting(self, name: str) -> str:
        """A setting's value as text; empty if it is not known."""
        return self.settings[name].value if name in self.settings else ""

    def number(self, name: str) -> float | None:
        """A setting's value as a number; None if it is not known or no number."""
        try:
            return number_or_none(float(self.setting(name)))
        except ValueError:
            return None

    @property
    def environment_metrics(self) -> list[str]:
        """Numeric columns that the table of metrics does not know, in order of appearance."""
        known = {metric.name for metric in METRICS}
        names: dict[str, None] = {}
        for line in self.metrics:
            names.update(
                (name, None)
                for name, value in line.items()
                if name not in known and number_or_none(value) is not None
            )
        return list(names)


def read_run(run_dir: str | os.PathLike[str]) -> RunRecord:
    """Read a run. Without usable metrics there is nothing to show: ValueError with path and fix. The rest may be missing."""
    path = Path(run_dir)
    metrics_path = path / METRICS_FILE
    notes: list[str] = []
    if not path.is_dir():
        raise ValueError(f"{path} is not a directory; give the --output directory of a training run")
    try:
        record = read_metrics(metrics_path)
    except FileNotFoundError:
        raise ValueError(
            f"{path} has no {METRICS_FILE}; give the --output directory of a training run"
        ) from None
    except OSError as error:
        raise ValueError(f"{metrics_path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{error}; restore the file, or remove the lines from there on") from None
    if not record.lines:
        raise ValueError(f"{metrics_path} holds no update yet; wait for the first one, then ask again")
    if record.cut_line is not None:
        notes.append(
            f"{METRICS_FILE}: line {record.cut_line} was cut off while it was written and is not shown."
        )
    first = record.lines[0]["update"]
    if first != 1:
        notes.append(f"{METRICS_FILE} begins at update {first}; what came before is not recorded.")

    evaluations: tuple[dict[str, Any], ...] = ()
    try:
        evaluation_record = read_evaluations(path / EVALUATION_FILE)
        evaluations = evaluation_record.lines
        if evaluation_record.cut_line is not None:
            notes.append(
                f"{EVALUATION_FILE}: line {evaluation_record.cut_line} was cut off and is not shown."
            )
    except FileNotFoundError:
        notes.append(f"{EVALUATION_FILE} is missing, so no held-out accuracy is shown.")
    except (ValueError, OSError) as error:
        notes.append(f"{EVALUATION_FILE} is damaged and not shown: {error}.")

    provenance = _read_mapping(
        path / PROVENANCE_FILE, json.loads, _MAX_PROVENANCE_BYTES, notes, "where code and settings came from"
    )
    config = _read_mapping(path / CONFIG_FILE, _load_yaml, _MAX_CONFIG_BYTES, notes, "the resolved settings")
    return RunRecord(path, record.lines, evaluations, provenance, _settings(provenance, config), tuple(notes))


def _read_mapping(
    path: Path, load: Callable[[str], Any], limit: int, notes: list[str], lost: str
) -> Mapping[str, Any]:
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a file")
        if path.stat().st_size > limit:
            raise ValueError(f"larger than {limit:,} bytes")
        content = load(path.read_text("utf-8"))
        if not isinstance(content, Mapping):
            raise ValueError("not a table of names and values")
    except FileNotFoundError:
        notes.append(f"{path.name} is missing, so {lost} cannot be shown.")
    except RecursionError:
        notes.append(f"{path.name} is damaged and not shown: nested too deeply.")
    except (ValueError, OSError) as error:
        notes.append(f"{path.name} is damaged and not shown: {' '.join(str(error).split())[:200]}.")
    else:
        return content
    return {}


def _load_yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise
    except Exception as error:  # the constructors of YAML raise more than YAMLError
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _settings(provenance: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, ShownSetting]:
    """Every setting of the resolved configuration, with the sources that the provenance knows."""
    shown: dict[str, ShownSetting] = {}
    for name, value in _leaves(config):
        if len(shown) >= _MAX_SETTINGS:
            break
        shown[redact(name)] = ShownSetting(_setting_text(name, value))
    sources = provenance.get("settings")
    if isinstance(sources, Mapping):
        for name, entry in list(sources.items())[:_MAX_SETTINGS]:
            if not isinstance(entry, Mapping):
                continue
            pieces = [entry.get("layer"), entry.get("source")]
            source = ": ".join(
                dict.fromkeys(value_text(piece) for piece in pieces if piece not in (None, ""))
            )
            for inner in [key for key in shown if key.startswith(f"{name}.")]:
                del shown[inner]  # a table that is one setting
            shown[redact(str(name))] = ShownSetting(_setting_text(str(name), entry.get("value")), source)
    return shown


def _leaves(config: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and depth < _MAX_DEPTH:
            yield from _leaves(value, f"{name}.", depth + 1)
        else:
            yield name, value


def _setting_text(name: str, value: Any) -> str:
    return REDACTED if value is not None and is_secret_name(name) else value_text(value)


def value_text(value: Any) -> str:
    """A value as short text without secrets, however it is nested."""
    return redact(_nested_text(value, 0))[:_MAX_VALUE_LENGTH]


def _nested_text(value: Any, depth: int) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value[:_MAX_VALUE_LENGTH]
    if isinstance(value, (Mapping, list, tuple)) and depth >= 3:
        return "..."
    if isinstance(value, Mapping):
        items = [f"{key}: {_nested_text(item, depth + 1)}" for key, item in list(value.items())[:20]]
        return ", ".join(items) if depth == 0 else "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        items = [_nested_text(item, depth + 1) for item in value[:20]]
        return ", ".join(items) if depth == 0 else "[" + ", ".join(items) + "]"
    try:
        return str(value)
    except ValueError:  # an integer with thousands of digits
        return "a huge number"


def number_or_none(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the measured values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
