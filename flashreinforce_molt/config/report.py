"""How a validator collects what it has to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from flashreinforce_molt.config.experiment import Check, Experiment

Level = Literal["ok", "warning", "error"]
Derived = Mapping[str, tuple[Any, str]]


class Report:
    """Collects what one validator has to say; without a complaint it reports `ok`."""

    def __init__(self, id: str, experiment: Experiment, *settings: str) -> None:
        self._id = id
        self._experiment = experiment
        self._settings = settings
        self._checks: list[Check] = []

    def say(self, name: str) -> str:
        return str(self._experiment.settings[name])

    def add(self, level: Level, message: str) -> None:
        self._checks.append(Check(self._id, level, message, self._settings))

    def checks(self, ok: str) -> list[Check]:
        return self._checks or [Check(self._id, "ok", ok, self._settings)]
