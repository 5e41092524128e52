"""Lay the values of several sources over each other and remember what each replaced."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flashreinforce_molt.config.catalogue import catalogue
from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.config.experiment import Setting
from flashreinforce_molt.config.recipe_file import Assignment
from flashreinforce_molt.config.schema import Config
from flashreinforce_molt.config.typed import show


@cache
def _schema() -> DictConfig:
    return OmegaConf.structured(Config)


BELONGING = {
    "model.id": ("model.revision", "molt.model_path"),
    "data.id": ("data.revision", "data.prepare", "data.path", "data.rows"),
}
"""Settings that describe one model or data set, so that another id leaves them without meaning."""
_SUITE_BELONGING = ("split", "rows", "path", "revision")


class Layers:
    """What each layer has said about each setting, oldest first."""

    def __init__(self) -> None:
        self._said: dict[str, list[tuple[str, Any, str]]] = {
            name: [("default", copy.deepcopy(spec.default), "default")] for name, spec in catalogue().items()
        }
        self._order = ["default"]

    def apply(self, layer: str, assignments: Iterable[Assignment]) -> None:
        if layer not in self._order:
            self._order.append(layer)
        for assignment in assignments:
            said = self._said[assignment.name]
            value, source = assignment.value, assignment.source
            if assignment.inner:
                below_layer, below, below_source = said[-1]
                key = ".".join(assignment.inner)
                value = _with_inner(below, assignment)
                if below:
                    source = f"{source} for {key}; the rest {below_layer}: {below_source}"
            said.append((layer, value, source))

    def orphans(self) -> list[Assignment]:
        """Empty values for settings that a lower layer wrote about another model or data set than the chosen one."""
        found = []
        for owner, names in BELONGING.items():
            layer, chosen, _ = self._said[owner][-1]
            for name in names:
                its_layer, value, _ = self._said[name][-1]
                known = [
                    id for below, id, _ in self._said[owner] if self._rank(below) <= self._rank(its_layer)
                ]
                if value is not None and known[-1] != chosen:
                    reason = (
                        f"{show(value)} belongs to {known[-1]}, but {owner}={show(chosen)} (from {layer})"
                    )
                    found.append(Assignment(name, None, reason))
        return found

    def _rank(self, layer: str) -> int:
        return self._order.index(layer)

    def settings(self) -> dict[str, Setting]:
        resolved = {}
        for name, said in self._said.items():
            layer, value, source = said[-1]
            resolved[name] = Setting(name, value, source, layer, tuple(said[:-1]))
        return resolved

    def config(self) -> Config:
        nested: dict[str, Any] = {}
        for name, said in self._said.items():
            group, _, key = name.rpartition(".")
            (nested.setdefault(group, {}) if group else nested)[key] = said[-1][1]
        try:
            merged = OmegaConf.merge(_schema(), nested)
            return OmegaConf.to_object(merged)  # type: ignore[return-value]
        except OmegaConfBaseException as error:
            raise SettingError(f"{error.full_key or 'a setting'}: {error.msg or error}") from error


def _with_inner(below: Any, assignment: Assignment) -> dict[str, Any]:
    value = copy.deepcopy(below) or {}
    place, path = value, assignment.name
    *outer, last = assignment.inner
    for key in outer:
        path = f"{path}.{key}"
        place = place.setdefault(key, {})
        if not isinstance(place, dict):
            raise SettingError(
                f"--set {'.'.join((assignment.name, *assignment.inner))}: {path}={show(place)} is not a mapping"
            )
    if assignment.name == "evaluation.suites" and last == "id" and place.get(last) != assignment.value:
        for key in _SUITE_BELONGING:  # they describe the suite that stood here
            place.pop(key, None)
    place[last] = assignment.value
    return value
