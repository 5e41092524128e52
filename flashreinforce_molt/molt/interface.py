"""Molt's command line as committed in `interface.json`, so that flags can be checked where Molt is not installed.

`scripts/describe_molt.py` generates the file from the installed package, and a test fails when they differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flashreinforce_molt.molt.options import ESTIMATOR, FLASH_OPTIONS, LOSS_MODE

_KINDS = {"str": str, "int": int, "float": float}


@dataclass(frozen=True)
class MoltOption:
    """One option. `kind` is "value", "switch" (present or absent) or "pair" (`--x` and `--no-x`)."""

    name: str
    kind: str
    default: Any
    type: type = str
    nargs: int | str | None = None
    choices: tuple[Any, ...] | None = None
    dest: str = ""

    @property
    def several(self) -> bool:
        """Takes a list of values."""
        return self.nargs is not None and self.nargs != "?"


@cache
def molt_options() -> Mapping[str, MoltOption]:
    """Every option by its name without dashes: Molt's own, with our additional choices, and ours under `flash.`."""
    described = json.loads(Path(__file__).with_name("interface.json").read_text("utf-8"))
    options = {name: _option(name, entry) for name, entry in described["options"].items()}
    for option in FLASH_OPTIONS:
        kind = "pair" if option.kind is bool else "value"
        options[option.dest] = MoltOption(
            option.dest, kind, option.default, option.kind, None, option.choices, option.dest
        )
    return options


def _option(name: str, entry: Mapping[str, Any]) -> MoltOption:
    kind = _KINDS.get(entry.get("type", "str"), str)
    default, choices = entry["default"], entry.get("choices")
    if kind is float and isinstance(default, (str, int)) and not isinstance(default, bool):
        default = float(default)
    added = {"actor.loss_mode": LOSS_MODE, "algo.advantage.estimator": ESTIMATOR}.get(name)
    if choices is not None:
        choices = (*choices, added) if added else tuple(choices)
    return MoltOption(
        name, entry["kind"], default, kind, entry.get("nargs"), choices, entry.get("dest", name)
    )


def defaults() -> dict[str, Any]:
    """What Molt's parser yields without any flag, by dotted destination."""
    values: dict[str, Any] = {}
    for option in molt_options().values():
        values.setdefault(option.dest, option.default)
    return values


def mistake(option: MoltOption, value: Any) -> str | None:
    """Why the parser would not take `value`, or None."""
    if option.kind != "value":
        return None if isinstance(value, bool) else "must be true or false"
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) != option.several:
        return "takes a list" if option.several else "takes one value, not a list"
    if isinstance(option.nargs, int) and len(values) != option.nargs:
        return f"takes {option.nargs} values"
    for each in values:
        if isinstance(each, bool) or not isinstance(each, _accepted(option.type)):
            words = {str: "text", int: "a whole number", float: "a number"}
            return f"must be {words[option.type]}"
        if option.choices is not None and each not in option.choices:
            return f"is not one of {', '.join(map(str, option.choices))}"
    return None


def _accepted(kind: type) -> tuple[type, ...]:
    return (int, float) if kind is float else (kind,)


def arguments(flags: Mapping[str, Any]) -> list[str]:
    """The flags as words of a command line, in their order."""
    words: list[str] = []
    for name, value in flags.items():
        option = molt_options()[name]
        if option.kind == "value":
            values: Sequence[Any] = value if isinstance(value, list) else [value]
            words += [f"--{name}", *map(_word, values)]
        elif value:
            words.append(f"--{name}")
        elif option.kind == "pair":
            words.append(f"--no-{name}")
    return words


def _word(value: Any) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value) if isinstance(value, float) else str(value)
