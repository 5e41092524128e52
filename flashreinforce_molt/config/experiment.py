"""A resolved experiment: every setting with its value, where the value came from, and what it replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flashreinforce_molt.config.schema import Config
from flashreinforce_molt.config.typed import show

ENGINES = ("local", "molt", "megatron")
_RECIPE_LAYERS = ("default", "base", "recipe")


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
    def recipe_said(self) -> tuple[str, Any, str] | None:
        """(layer, value, source) of the recipe, its base or the default, where something later replaced it."""
        below = [said for said in self.replaced if said[0] in _RECIPE_LAYERS]
        return below[-1] if below and self.layer not in _RECIPE_LAYERS else None

    @property
    def differs(self) -> bool:
        """The value is not the recipe's; a value that is derived where the recipe says nothing is no difference."""
        said = self.recipe_said
        return (
            said is not None
            and said[1] != self.value
            and not (self.layer == "derived" and said[0] == "default")
        )

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
