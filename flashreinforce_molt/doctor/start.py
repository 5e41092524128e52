"""The real start of a Molt run: examine the machine, write down what will run, then become that command."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.doctor.checks import examine
from flashreinforce_molt.doctor.machine import Machine
from flashreinforce_molt.resuming import record_continuation, validate_same_method
from flashreinforce_molt.review.as_data import as_data, replaced
from flashreinforce_molt.review.document import Review
from flashreinforce_molt.review.secrets import without_secrets
from flashreinforce_molt.telemetry.redaction import redact
from flashreinforce_molt.telemetry.run_directory import (
    PROVENANCE_FILE,
    create_run_directory,
    write_atomically,
    write_config,
    write_provenance,
)

COMMAND_FILE = "command.sh"
_LAUNCH = "flashreinforce_molt.molt.launch"
Become = Callable[[str, list[str], Mapping[str, str]], object]


def start_molt(
    review: Review,
    *,
    resume: bool = False,
    accept_changes: bool = False,
    machine: Machine | None = None,
    become: Become = os.execve,
) -> int:
    """Check everything, write config, provenance and command into the run directory, and run the command.

    A resumed run keeps its method, unless `accept_changes` says otherwise, and its files state what runs now. All failures are raised together as one SettingError. The process becomes the command (`become`), so that its exit
    code and Ctrl-C are the run's own; no Ray cluster is started or stopped here.
    """
    if review.errors:
        raise SettingError(*(check.message for check in review.errors))
    found = examine(review, machine)
    for check in (*review.checks, *found):
        if check.level == "warning":
            print(redact(f"warning: {check.message}"), file=sys.stderr)
    failed = [check.message for check in found if check.level == "error"]
    if failed:
        raise SettingError(*failed)
    run_dir = create_run_directory(review.run_dir, resume=resume)
    if resume:
        if not accept_changes:
            validate_same_method(run_dir, review.experiment)
        _continue(review, run_dir)
    else:
        _write_down(review, run_dir)
    module = review.command[2]
    if module == _LAUNCH and importlib.util.find_spec(_LAUNCH) is None:
        raise SettingError(
            f"all checks passed and {run_dir} holds config, provenance and command, but this version has no "
            f"{_LAUNCH} yet: nothing was started"
        )
    environment = dict(os.environ) | {each.name: each.value for each in review.env if each.value is not None}
    sys.stdout.flush()
    become(sys.executable, [sys.executable, *review.command[1:]], environment)
    return 0


def _newest_update(run_dir: Path) -> int:
    """The update of Molt's newest checkpoint; 0 when there is none, and Molt then starts from the beginning."""
    tags = (path.name.removeprefix("global_step") for path in run_dir.glob("checkpoints/_actor/global_step*"))
    return max((int(tag) for tag in tags if tag.isdigit()), default=0)


def _continue(review: Review, run_dir: Path) -> None:
    """State what runs from now on; how the run began, and what was changed since, stays in the provenance."""
    record_continuation(run_dir, review.experiment, _newest_update(run_dir))
    earlier = json.loads((run_dir / PROVENANCE_FILE).read_text("utf-8"))
    beginning = {key: value for key, value in earlier.items() if key not in (*_REVIEWED, *_WRITTEN)}
    _write_down(review, run_dir, beginning)


_REVIEWED, _WRITTEN = ("pins", "flags", "plan", "env"), ("recipe", "variants", "engine", "settings")


def _write_down(review: Review, run_dir: Path, beginning: Mapping[str, Any] | None = None) -> None:
    """Config, provenance and command; `beginning` is what the provenance of a resumed run keeps."""
    experiment = review.experiment
    write_config(run_dir, experiment.config)
    settings = {
        name: {
            "value": setting.value,
            "source": setting.source,
            "layer": setting.layer,
            "replaced": replaced(setting),
        }
        for name, setting in experiment.settings.items()
    }
    data = as_data(review)
    write_provenance(
        run_dir,
        recipe=experiment.recipe,
        variants=experiment.variants,
        settings=settings,
        engine=experiment.engine,
        extra={key: data[key] for key in _REVIEWED} | dict(beginning or {}),
    )
    exports = [
        f"export {each.name}={shlex.quote(each.value)}" for each in review.env if each.value is not None
    ]
    command = shlex.join(without_secrets(review, list(review.command)))
    write_atomically(run_dir / COMMAND_FILE, "\n".join(["#!/bin/sh", *exports, command, ""]))
