"""Recipes and `--set`: odd types, injections, YAML tags, aliases, depth, length, control characters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.catalogue import catalogue
from flashreinforce_molt.config.recipe_file import parse_override, read_recipe
from flashreinforce_molt.recipes import resolve_experiment
from flashreinforce_molt.review.commands import Request
from flashreinforce_molt.review.document import review_experiment
from flashreinforce_molt.review.text import page
from fuzzing.case import ANSWER, REFUSED, STRANGE_TEXTS, attempt, demand, mangled

CANARY = "canary_of_the_fuzzer"
DANGEROUS = (
    f"!!python/object/apply:os.mkdir [{CANARY}]",
    f"!!python/object/new:os.mkdir {{args: [{CANARY}]}}",
    "!!python/name:os.system",
    "{a: !!set {b}}",
    "{a: &a [1], b: *a}",
    "{a: &x {b: *x}}",
    "{<<: {a: 1}}",
    "[" * 3000,
    "{a: " * 500 + "1" + "}" * 500,
    "{a: ${oc.env:HOME}}",
    "{a: .nan}",
    "{a: 1e999}",
    "{a: 1, a: 2}",
    "{a: \x07}",
    "{" + "a" * 20_000 + ": 1}",
)
VALUES = (
    "1",
    "0",
    "-1",
    "1e-3",
    "1_0",
    "007",
    "0x10",
    "true",
    "null",
    "~",
    "'q'",
    "{}",
    "{a: 1}",
    "[a, 2]",
    "9" * 70,
)
FREE = [name for name, spec in catalogue().items() if spec.free_form]
RECIPE = """summary: a small recipe
engines: [local, molt]
requires: [a machine]
settings:
  seed: {value: 3, source: "here"}
  optim: {lr: {value: 1e-3, source: "there"}}
  environment: {options: {value: {task: spell, sizes: [1, 2]}, source: "the task"}}
variants:
  fast: {summary: "a fast one", settings: {train: {updates: {value: 7, source: "patience"}}}}
"""


def case(rng: Random, folder: Path) -> str:
    """One override, one recipe file, or in a case of 150 a whole experiment with its review."""
    kind = rng.random()
    if kind < 1 / 150:
        outcome = _experiment(rng, folder)
    elif kind < 0.15:
        text = RECIPE if rng.random() < 0.1 else mangled(RECIPE, rng)
        must = ANSWER if text == RECIPE else None
        outcome, file = attempt(
            lambda: read_recipe("small", text, "small.yaml"), (SettingError,), must=must, names="small"
        )
        if outcome == ANSWER and all("\n" not in check.message.strip() for check in file.problems):
            outcome = REFUSED if file.problems else ANSWER
    else:
        outcome = _override(rng)
    demand(not Path(CANARY).exists(), "a tag was executed")
    return outcome


def _override(rng: Random) -> str:
    name = rng.choice([*catalogue(), *FREE, *FREE])
    dangerous = rng.random() < 0.4
    value = rng.choice(DANGEROUS if dangerous else [*VALUES, *STRANGE_TEXTS])
    key = (
        f"{name}.{rng.choice(['a', 'a.b', '0', '__class__', 'a..b', 'é'])}"
        if name in FREE and rng.random() < 0.5
        else name
    )
    if rng.random() < 0.15:
        key, dangerous = mangled(key, rng), False
    text_wanted = key in catalogue() and catalogue()[key].kind is str
    must = REFUSED if dangerous and not text_wanted else None
    outcome, assignment = attempt(lambda: parse_override(f"{key}={value}"), (SettingError,), must=must)
    if outcome == ANSWER and not assignment.inner:
        spec, held = catalogue()[assignment.name], assignment.value
        right = (spec.optional and held is None) or type(held) is spec.kind
        demand(right, f"{assignment.name} became {type(held).__name__} {str(held)[:99]!r}")
        if spec.kind in (int, float) and held is not None:
            low = spec.minimum if spec.minimum is not None else held
            demand(low <= held and (spec.above is None or held > spec.above), f"{assignment.name}={held}")
        demand("${" not in str(held), "an interpolation got in")
    return outcome


def _experiment(rng: Random, folder: Path) -> str:
    """Free-form settings reach the checks and the plan, which must not believe in their form."""
    overrides = [
        f"{rng.choice(FREE)}={rng.choice(['{a: 1}', '{a: {}}', '{a: [1]}', '{a: {path: 3, rows: x, split: []}}', '{}'])}",
        f"{rng.choice([*catalogue()])}={rng.choice([*VALUES, *STRANGE_TEXTS])}",
        *(
            [f"{rng.choice(FREE)}.a.{rng.choice(['path', 'id', 'b'])}={rng.choice(VALUES)}"]
            if rng.random() < 0.5
            else []
        ),
    ]
    variants = rng.choice([(), ("fast",), ("fast", "slow"), (rng.choice(STRANGE_TEXTS),)])
    engine = rng.choice([None, "local", "molt", "megatron", rng.choice(STRANGE_TEXTS)])
    shelf = _shelf(folder)

    def review() -> bool:
        resolution = resolve_experiment(
            "small", variants=variants, overrides=overrides, engine=engine, recipes_dir=shelf
        )
        page(review_experiment(resolution, Request("small", variants, tuple(overrides), engine)), 100)
        return bool(resolution.errors)

    outcome, errors = attempt(review, (SettingError,))
    return REFUSED if errors else outcome


@cache
def _shelf(folder: Path) -> Path:
    shelf = folder / "shelf"
    shelf.mkdir()
    (shelf / "small.yaml").write_text(RECIPE)
    return shelf
