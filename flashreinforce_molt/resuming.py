"""A resumed run keeps its method: which settings may differ from those it began with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.experiment import Experiment
from flashreinforce_molt.config.typed import show
from flashreinforce_molt.telemetry.run_directory import (
    PROVENANCE_FILE,
    record_resume,
    setting_entries,
    write_config,
    write_json,
)

FREE = (
    "telemetry.",
    "checkpoint.",
    "evaluation.",
    "train.check_on_policy",
    "train.max_nonfinite_updates",
    "engine.threads",
    "engine.max_worker_restarts",
    "environment.max_retries",
    "engine.workers",
    "engine.device",
    "cluster.",
)
"""Settings that leave the method alone: what is shown and kept, and how the work is shared out."""


def validate_same_method(run_dir: Path, experiment: Experiment) -> None:
    """Raise SettingError that names every setting of the method that differs from the run's own, with both values."""
    before = {name: setting["value"] for name, setting in _recorded(run_dir)["settings"].items()}
    changed = [
        f"{setting}: this run began with {show(before[name])}. Give that value again, start a new run with another "
        "--output, or pass --accept-changes"
        for name, setting in experiment.settings.items()
        if not name.startswith(FREE) and name in before and before[name] != setting.value
    ]
    if changed:
        raise SettingError(*changed)


def record_continuation(
    run_dir: Path, experiment: Experiment, update: int, *, command: Sequence[str] | None = None
) -> None:
    """State in `config.yaml` and `provenance.json` what runs from now on, and what was changed after `update`."""
    record_resume(run_dir, update, command=command)
    content = _recorded(run_dir)
    before, now = content["settings"], setting_entries(experiment.settings)
    changed = {
        name: [before[name]["value"], entry["value"]]
        for name, entry in now.items()
        if name in before and before[name]["value"] != entry["value"]
    }
    if changed:
        content["resumes"][-1]["changed"] = changed
        content["settings"] = now
        write_json(run_dir / PROVENANCE_FILE, content)
        write_config(run_dir, experiment.config)


def recorded_request(run_dir: Path) -> tuple[str, list[str], list[str]]:
    """Recipe, variants and `--set` values that a run began with, so that `--resume` needs none of them again."""
    content = _recorded(run_dir)
    recipe, variants = content.get("recipe"), content.get("variants")
    if not (isinstance(recipe, str) and isinstance(variants, list) and _are_texts(variants)):
        raise SettingError(
            f"{run_dir / PROVENANCE_FILE} does not say which recipe and variants this run began with; give them "
            "with --recipe and --variant"
        )
    overrides = [
        f"{name}={setting['value'] if isinstance(setting['value'], str) else json.dumps(setting['value'])}"
        for name, setting in content["settings"].items()
        if setting.get("layer") == "--set"
    ]
    return recipe, variants, overrides


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _recorded(run_dir: Path) -> dict[str, Any]:
    path = run_dir / PROVENANCE_FILE
    try:
        content = json.loads(path.read_text("utf-8"))
        if not all(
            isinstance(setting, dict) and "value" in setting for setting in content["settings"].values()
        ):
            raise ValueError("a setting has no value")
        return content
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingError(f"{path} cannot be read ({error}); it says what this run began with") from error
