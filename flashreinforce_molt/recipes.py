"""Find a recipe, lay its base, variants and overrides over the defaults, and keep where every value came from."""

from __future__ import annotations

import copy
import importlib.resources
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flashreinforce_molt.config.catalogue import catalogue
from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.config.experiment import ENGINES, Check, Experiment, Setting
from flashreinforce_molt.config.recipe_file import (
    MAX_FILE_LENGTH,
    Assignment,
    RecipeFile,
    parse_override,
    problem,
    read_recipe,
    unknown,
)
from flashreinforce_molt.config.schema import Config
from flashreinforce_molt.config.typed import show
from flashreinforce_molt.config.validate import DERIVATIONS, run_checks

__all__ = [
    "Check",
    "Experiment",
    "RecipeSummary",
    "Resolution",
    "Setting",
    "available_recipes",
    "load_experiment",
    "resolve_experiment",
]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class RecipeSummary:
    """What a list of recipes shows of one."""

    summary: str
    engines: tuple[str, ...]
    variants: Mapping[str, str]
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Resolution:
    """An experiment and everything that the checks say about it.

    A setting whose new value was refused keeps the value of the layer below, and an error among `checks` says so.
    """

    experiment: Experiment
    checks: tuple[Check, ...]

    @property
    def errors(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.level == "error")


def load_experiment(
    recipe: str,
    *,
    variants: Sequence[str] = (),
    overrides: Sequence[str] = (),
    engine: str | None = None,
    recipes_dir: str | Path | None = None,
) -> Experiment:
    """The experiment, if nothing is wrong with it; otherwise one SettingError that lists every mistake.

    `recipe` is a name in the recipes folder or a path that ends with `.yaml`; `variants` apply in order, then
    `overrides`, each a `key=value`. `engine` is one of the recipe's engines; the first of them when left out.
    """
    resolution = resolve_experiment(
        recipe, variants=variants, overrides=overrides, engine=engine, recipes_dir=recipes_dir
    )
    if resolution.errors:
        raise SettingError(*(check.message for check in resolution.errors))
    return resolution.experiment


def resolve_experiment(
    recipe: str,
    *,
    variants: Sequence[str] = (),
    overrides: Sequence[str] = (),
    engine: str | None = None,
    recipes_dir: str | Path | None = None,
) -> Resolution:
    """Like `load_experiment`, but mistakes become error checks; only an unreadable recipe raises."""
    variants = (variants,) if isinstance(variants, str) else tuple(variants)
    overrides = (overrides,) if isinstance(overrides, str) else tuple(overrides)
    shelf = _Shelf(recipes_dir)
    file = shelf.read(recipe)
    problems = list(file.problems)
    layers = _Layers(problems)

    if file.extends is not None:
        base = shelf.read(file.extends, beside=recipe)
        problems.extend(base.problems)
        if base.extends is not None:
            problems.append(
                problem(
                    f"recipe {file.name} extends {base.name}, which extends {base.extends}; one step is allowed"
                )
            )
        layers.apply("base", base.assignments)
    layers.apply("recipe", file.assignments)
    for variant in variants:
        if variant not in file.variants:
            known = tuple(file.variants)
            none = "" if known else "; this recipe has no variants"
            problems.append(problem(f"recipe {file.name}: {unknown('variant', str(variant), known)}{none}"))
            continue
        layers.apply(f"variant {variant}", file.variants[variant].assignments)
    for override in overrides:
        try:
            layers.apply("--set", [parse_override(override)])
        except SettingError as error:
            key = str(override).partition("=")[0].strip()
            problems.extend(
                problem(message, *([key] if key in catalogue() else [])) for message in error.problems
            )

    experiment = Experiment(
        recipe=file.name,
        summary=file.summary,
        variants=tuple(variant for variant in variants if variant in file.variants),
        engine=_chosen_engine(file, engine, problems),
        engines=file.engines,
        requires=file.requires,
        config=layers.config(),
        settings=layers.settings(),
    )
    broken = {name for check in problems for name in check.settings}
    experiment = _derived(experiment, layers, broken)
    checks = [
        check for check in run_checks(experiment) if check.level == "ok" or not broken & set(check.settings)
    ]
    return Resolution(experiment, (*problems, *checks))


def available_recipes(recipes_dir: str | Path | None = None) -> dict[str, RecipeSummary]:
    """The recipes that can run, by name; a recipe without engines only serves as a base."""
    shelf = _Shelf(recipes_dir)
    files = (shelf.read(name) for name in shelf.names())
    return {
        file.name: RecipeSummary(
            file.summary,
            file.engines,
            {name: block.summary for name, block in file.variants.items()},
            file.requires,
        )
        for file in files
        if file.engines
    }


def _chosen_engine(file: RecipeFile, engine: str | None, problems: list[Check]) -> str:
    if not file.engines:
        problems.append(
            problem(f"recipe {file.name} names no engines: it only serves other recipes as a base")
        )
        return engine if engine in ENGINES else ENGINES[0]
    if engine is None:
        return file.engines[0]
    if engine not in ENGINES:
        problems.append(problem(unknown("engine", str(engine), ENGINES)))
    elif engine not in file.engines:
        problems.append(
            problem(
                f"recipe {file.name} does not run on the engine {engine}; it runs on {', '.join(file.engines)}"
            )
        )
    else:
        return engine
    return file.engines[0]


def _derived(experiment: Experiment, layers: _Layers, broken: set[str]) -> Experiment:
    """`experiment` with the derived values; a value that somebody wrote stays."""
    for derive in DERIVATIONS:
        for name, (value, reason) in derive(experiment).items():
            if not experiment.settings[name].written and name not in broken:
                layers.apply("derived", [Assignment(name, value, reason)])
    return Experiment(
        **{**vars(experiment), "config": layers.config(), "settings": layers.settings()},
    )


class _Layers:
    """What each layer has said about each setting, oldest first."""

    def __init__(self, problems: list[Check]) -> None:
        self._problems = problems
        self._said: dict[str, list[tuple[str, Any, str]]] = {
            name: [("default", copy.deepcopy(spec.default), "default")] for name, spec in catalogue().items()
        }

    def apply(self, layer: str, assignments: Iterable[Assignment]) -> None:
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
            merged = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.create(nested))
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
    place[last] = assignment.value
    return value


class _Shelf:
    """A folder of recipes: the given one, else the checkout's, else the one inside the installed package."""

    def __init__(self, folder: str | Path | None) -> None:
        if folder is not None:
            self._folder: Any = Path(folder)
            self._shown = str(folder)
            if not self._folder.is_dir():
                raise SettingError(f"recipes folder {show(str(folder))} does not exist")
            return
        checkout = Path(__file__).resolve().parent.parent
        self._shown = "recipes"
        if (checkout / "setup.cfg").is_file() and (checkout / "recipes" / "base.yaml").is_file():
            self._folder = checkout / "recipes"
        else:
            self._folder = importlib.resources.files("flashreinforce_molt.shipped_recipes")

    def names(self) -> tuple[str, ...]:
        stems = (
            entry.name.removesuffix(".yaml")
            for entry in self._folder.iterdir()
            if entry.name.endswith(".yaml")
        )
        return tuple(sorted(stem for stem in stems if _NAME.fullmatch(stem)))

    def read(self, recipe: str, beside: str | None = None) -> RecipeFile:
        """The recipe of that name or path; `beside` is the recipe that asks, whose folder is looked into first."""
        recipe = str(recipe)
        if beside is not None and _is_path(beside):
            neighbour = Path(beside).parent / f"{recipe}.yaml"
            if _NAME.fullmatch(recipe) and neighbour.is_file():
                return _read(neighbour, recipe, str(neighbour))
        if _is_path(recipe):
            return _read(Path(recipe), Path(recipe).stem, recipe)
        if recipe not in self.names():
            raise SettingError(
                f"{unknown('recipe', recipe, self.names())}; a file is given by its path, ending with .yaml"
            )
        return _read(self._folder / f"{recipe}.yaml", recipe, f"{self._shown}/{recipe}.yaml")


def _is_path(recipe: str) -> bool:
    return recipe.endswith((".yaml", ".yml"))


def _read(path: Any, name: str, where: str) -> RecipeFile:
    if not path.is_file():
        raise SettingError(f"recipe file {show(where)} does not exist")
    with path.open("rb") as stream:
        data = stream.read(MAX_FILE_LENGTH * 4 + 1)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise SettingError(f"recipe file {show(where)} is not UTF-8 text") from None
    return read_recipe(name, text, where)
