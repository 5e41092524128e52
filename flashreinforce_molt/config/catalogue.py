"""The settings as a flat list: dotted name, type, default and limits of every field of `Config`."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from flashreinforce_molt.config.schema import Config


@dataclass(frozen=True)
class SettingSpec:
    """What the schema says about one setting."""

    name: str
    kind: type
    optional: bool
    default: Any
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    hint: str | None = None

    @property
    def free_form(self) -> bool:
        """A mapping whose keys the schema does not know."""
        return self.kind is dict

    @property
    def type_text(self) -> str:
        text = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "mapping"}[
            self.kind
        ]
        return f"{text}, or null" if self.optional else text

    @property
    def limits_text(self) -> str:
        """The limits in words, empty where there are none."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        parts = [
            f"{word} {limit:,}"
            for word, limit in (("above", self.above), ("at least", self.minimum), ("at most", self.maximum))
            if limit is not None
        ]
        return " and ".join(parts)


@cache
def catalogue() -> Mapping[str, SettingSpec]:
    """Every setting by its dotted name, in the order of the schema."""
    return types.MappingProxyType({spec.name: spec for spec in _specs(Config, "")})


@cache
def groups() -> tuple[str, ...]:
    """Names that hold settings and are none themselves, such as `rollout`."""
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in catalogue() if "." in name))


def _specs(schema: type, prefix: str) -> Iterable[SettingSpec]:
    hints = typing.get_type_hints(schema)
    for entry in fields(schema):
        hint = hints[entry.name]
        if is_dataclass(hint):
            yield from _specs(typing.cast(type, hint), f"{prefix}{entry.name}.")
            continue
        kind, optional = _kind(hint, f"{prefix}{entry.name}")
        limits = dict(entry.metadata)
        if limits.get("choices") is not None:
            limits["choices"] = tuple(limits["choices"])
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        yield SettingSpec(f"{prefix}{entry.name}", kind, optional, default, **limits)


def _kind(hint: Any, name: str) -> tuple[type, bool]:
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    optional = type(None) in typing.get_args(hint)
    if optional and len(members) == 1:
        hint = members[0]
    if typing.get_origin(hint) is dict:
        return dict, optional
    assert hint in (str, int, float, bool), f"{name}: the recipe loader has no rule for the type {hint}"
    return hint, optional


def nearest(word: str, names: Iterable[str], count: int = 3) -> Sequence[str]:
    """The `count` most similar names; a bare last component (`lr`) counts as much as the full name."""

    def likeness(name: str) -> float:
        last_of_word, last = word.rpartition(".")[2], name.rpartition(".")[2]
        whole = difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio()
        tail = difflib.SequenceMatcher(None, last_of_word.lower(), last.lower()).ratio()
        return max(whole, tail) + 0.25 * min(whole, tail)

    word = word[:200]
    return sorted(names, key=lambda name: (-likeness(name), name))[:count]
