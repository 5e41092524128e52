"""Every shipped experiment, for the tests of the review."""

import os
from functools import cache

from flashreinforce_molt.recipes import available_recipes, resolve_experiment
from flashreinforce_molt.review import Request, review_experiment

EVERY = [
    (recipe, *((variant,) if variant else ()))
    for recipe, listed in available_recipes().items()
    for variant in (None, *listed.variants)
]
ON_MOLT = [names for names in EVERY if "molt" in available_recipes()[names[0]].engines] + [
    ("moe", "trust_ablation", "no_trust"),
    ("moe", "trust_ablation", "no_is"),
]


def review_of(recipe, *words):
    """The review of a recipe with variants and, where a word holds an equals sign, overrides."""
    return _review(recipe, words, os.environ.get("ALFWORLD_DATA"))


@cache
def _review(recipe, words, _folder):
    variants = tuple(word for word in words if "=" not in word)
    overrides = tuple(word for word in words if "=" in word)
    resolution = resolve_experiment(recipe, variants=variants, overrides=overrides)
    return review_experiment(resolution, Request(recipe, variants, overrides))


def errors_of(recipe, *words):
    return [check.message for check in review_of(recipe, *words).errors]


def flags_of(review):
    return {flag.name: flag.value for flag in review.flags}
