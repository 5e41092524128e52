"""A resumed run keeps its method: which settings may differ from those it began with."""

from __future__ import annotations

import json
from pathlib import Path

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.experiment import Experiment
from flashreinforce_molt.config.typed import show
from flashreinforce_molt.telemetry.run_directory import PROVENANCE_FILE

FREE = (
    "telemetry.",
    "checkpoint.",
    "evaluation.",
    "engine.threads",
    "engine.workers",
    "engine.device",
    "cluster.",
)
"""Settings that leave the method alone: what is shown and kept, and how the work is shared out."""


def validate_same_method(run_dir: Path, experiment: Experiment) -> None:
    """Raise SettingError that names every setting of the method that differs from the run's own, with both values."""
    path = run_dir / PROVENANCE_FILE
    try:
        recorded = json.loads(path.read_text("utf-8"))["settings"]
        before = {name: setting["value"] for name, setting in recorded.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(
            f"{path} cannot be read ({error}); it says which settings this run began with"
        ) from error
    changed = [
        f"{setting}: this run began with {show(before[name])}. Give that value again, start a new run with another "
        "--output, or pass --accept-changes"
        for name, setting in experiment.settings.items()
        if not name.startswith(FREE) and name in before and before[name] != setting.value
    ]
    if changed:
        raise SettingError(*changed)
