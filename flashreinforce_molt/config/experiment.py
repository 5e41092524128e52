"""A resolved experiment: every setting with its value, where the value came from, and what it replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flashreinforce_molt.config.schema import Config
from flashreinforce_molt.config.typed import show

ENGINES = ("local", "molt", "megatron")


@dataclass(frozen=True)
class Setting:
    """One resolved setting.

    `layer` is "default", "base", "recipe", "variant NAME", "--set" or "derived"; `source` is the reason written
    beside the value; `replaced` holds (layer, value, source) of what the layers below had said, oldest first.
    """

    name: str
    value: Any
    source: str
    layer: str
    replaced: tuple[tuple[str, Any, str], ...] = ()

    @property
    def written(self) -> bool:
        """Somebody chose this value: a recipe, a variant or the command line."""
        return self.layer not in ("default", "derived")

    @property
    def chosen(self) -> bool:
        """A variant or the command line chose this value over the recipe's."""
        return self.layer == "--set" or self.layer.startswith("variant ")

    def __str__(self) -> str:
        origin = self.layer if self.layer in ("default", "derived") else f"from {self.layer}"
        return f"{self.name}={show(self.value)} ({origin})"


@dataclass(frozen=True)
class Check:
    """What one validator found; `settings` are the names that it looked at."""

    id: str
    level: Literal["ok", "warning", "error"]
    message: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A recipe with its variants and overrides applied; `settings` has every leaf, in the order of the schema."""

    recipe: str
    summary: str
    variants: tuple[str, ...]
    engine: str
    engines: tuple[str, ...]
    requires: tuple[str, ...]
    config: Config
    settings: Mapping[str, Setting]
