"""Find a recipe, lay its base, variants and overrides over the defaults, and keep where every value came from."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flashreinforce_molt.config.catalogue import catalogue
from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.config.experiment import ENGINES, Check, Experiment, Setting
from flashreinforce_molt.config.layers import Layers
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
from flashreinforce_molt.config.strict_yaml import NAME
from flashreinforce_molt.config.typed import show
from flashreinforce_molt.config.validate import DERIVATIONS, run_checks

__all__ = [
    "Check",
    "Experiment",
    "RecipeSummary",
    "Resolution",
    "Setting",
    "available_recipes",
    "engines_of",
    "load_experiment",
    "resolve_experiment",
]


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
    layers = Layers()

    if file.extends is not None:
        base = shelf.read(file.extends, asked_by=recipe)
        problems.extend(base.problems)
        if base.extends is not None:
            chain = f"{file.name} extends {base.name}, which extends {base.extends}"
            raise SettingError(
                f"recipe {chain}; a recipe may extend one that stands alone: extend {base.extends}, and choose the rest by "
                "--variant or --set"
            )
        layers.apply("base", base.assignments)
    layers.apply("recipe", file.assignments)
    for variant in variants:
        if variant in file.variants:
            beside = file.variants[variant].beside
            if beside is not None and beside not in variants:
                said = f"variant {variant} was published with {beside}, not alone; add --variant {beside}"
                problems.append(Check("variant", "warning", said))
            layers.apply(f"variant {variant}", file.variants[variant].assignments)
        else:
            none = "" if file.variants else "; this recipe has no variants"
            message = unknown("variant", str(variant), tuple(file.variants), f"of recipe {file.name}")
            problems.append(problem(message + none))
    for override in overrides:
        try:
            layers.apply("--set", [parse_override(override)])
        except SettingError as error:
            key = str(override).partition("=")[0].strip()
            problems.extend(
                problem(message, *([key] if key in catalogue() else [])) for message in error.problems
            )
    if orphans := layers.orphans():
        layers.apply("derived", orphans)

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
    experiment = _with_derived(experiment, layers, broken)
    checks = [check for check in run_checks(experiment) if not broken & set(check.settings)]
    return Resolution(experiment, (*problems, *checks))


def engines_of(recipe: str) -> tuple[str, ...]:
    """The engines of one recipe."""
    return _Shelf(None).read(recipe).engines


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
        message = f"recipe {file.name} names no engines: it only serves other recipes as a base"
    elif engine is None or engine in file.engines:
        return engine or file.engines[0]
    elif engine in ENGINES:
        runs_on = ", ".join(file.engines)
        message = f"recipe {file.name} does not run on the engine {engine}; it runs on {runs_on}"
    else:
        message = unknown("engine", str(engine), ENGINES)
    problems.append(problem(message))
    return file.engines[0] if file.engines else ENGINES[0]


def _with_derived(experiment: Experiment, layers: Layers, broken: set[str]) -> Experiment:
    """`experiment` with the derived values; a value that somebody wrote stays."""
    for derive in DERIVATIONS:
        changes = [
            Assignment(name, value, reason)
            for name, (value, reason) in derive(experiment).items()
            if not experiment.settings[name].written and name not in broken
        ]
        if changes:
            layers.apply("derived", changes)
            experiment = replace(
                experiment, config=_changed(experiment.config, changes), settings=layers.settings()
            )
    return experiment


def _changed(config: Config, changes: Sequence[Assignment]) -> Config:
    config = copy.deepcopy(config)
    for change in changes:
        group, _, key = change.name.rpartition(".")
        setattr(getattr(config, group) if group else config, key, change.value)
    return config


class _Shelf:
    """A folder of recipes: the given one, else the checkout's, else the one inside the installed package."""

    def __init__(self, folder: str | Path | None) -> None:
        checkout = Path(__file__).resolve().parent.parent
        self._shown = "recipes" if folder is None else str(folder)
        if folder is not None:
            self._folder: Any = Path(folder)
            if not _exists(self._folder, Path.is_dir):
                raise SettingError(f"recipes folder {show(str(folder))} does not exist")
        elif (checkout / "setup.cfg").is_file() and (checkout / "recipes" / "base.yaml").is_file():
            self._folder = checkout / "recipes"
        else:
            import importlib.resources

            self._folder = importlib.resources.files("flashreinforce_molt.shipped_recipes")

    def names(self) -> tuple[str, ...]:
        files = (entry.name for entry in self._folder.iterdir() if entry.name.endswith(".yaml"))
        stems = (name.removesuffix(".yaml") for name in files)
        return tuple(sorted(stem for stem in stems if NAME.fullmatch(stem)))

    def read(self, recipe: str | Path, asked_by: str | Path | None = None) -> RecipeFile:
        """The recipe of that name or path; one that a file extends may stand beside that file."""
        recipe = str(recipe)
        if asked_by is not None and _is_path(str(asked_by)) and NAME.fullmatch(recipe):
            neighbour = Path(asked_by).parent / f"{recipe}.yaml"
            if neighbour.is_file():
                return _read(neighbour, recipe, str(neighbour))
        if asked_by is None and _is_path(recipe):
            return _read(Path(recipe), Path(recipe).stem, recipe)
        if recipe not in self.names():
            origin = "" if asked_by is None else f"extended by {asked_by}"
            message = unknown("recipe", recipe, self.names(), origin)
            raise SettingError(f"{message}; a file of your own is given by its path, ending with .yaml")
        return _read(self._folder / f"{recipe}.yaml", recipe, f"{self._shown}/{recipe}.yaml")


def _is_path(recipe: str) -> bool:
    return recipe.endswith((".yaml", ".yml"))


def _exists(path: Path, is_kind: Callable[[Path], bool]) -> bool:
    try:
        return is_kind(path)
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False


def _read(path: Any, name: str, where: str) -> RecipeFile:
    if isinstance(path, Path) and not _exists(path, Path.is_file):
        raise SettingError(f"recipe {show(where)} is not a file")
    try:
        with path.open("rb") as stream:
            text = stream.read(4 * MAX_FILE_LENGTH).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"recipe file {show(where)} cannot be read: {error}") from None
    return read_recipe(name, text, where)
