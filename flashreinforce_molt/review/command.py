"""The dry run of the command line: resolve, review, print."""

from __future__ import annotations

import argparse
import json
import sys

from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.recipes import resolve_experiment
from flashreinforce_molt.review.commands import Request
from flashreinforce_molt.review.document import Review, review_experiment
from flashreinforce_molt.review.layout import emit, width_of

DEFAULT_RECIPE = "r1"
"""What a dry run shows when no recipe is named."""


def reviewed(options: argparse.Namespace) -> Review:
    """The review of what the command line asks for."""
    recipe = DEFAULT_RECIPE if options.recipe is None else options.recipe
    variants, overrides = tuple(options.variant), tuple(options.overrides)
    return _review(
        recipe, Request(recipe, variants, overrides, options.engine, options.output, options.resume)
    )


def _review(recipe: str, request: Request) -> Review:
    resolution = resolve_experiment(
        recipe, variants=request.variants, overrides=request.overrides, engine=request.engine
    )
    return review_experiment(resolution, request)


def run_review(options: argparse.Namespace) -> int:
    """Print the review, or its difference from another; 2 when it holds an error."""
    from flashreinforce_molt.review.secrets import without_secrets

    review = reviewed(options)
    other = _other(options.diff, review) if options.diff is not None else None
    if options.format == "json":
        from flashreinforce_molt.review.as_data import as_data
        from flashreinforce_molt.review.differences import difference_data

        data = as_data(review) if other is None else difference_data(review, other)
        print(json.dumps(without_secrets(review, data), indent=2, ensure_ascii=False))
    elif other is None:
        from flashreinforce_molt.review.text import page

        emit(page(review, width_of(sys.stdout)))
    else:
        from flashreinforce_molt.review.differences import difference_page

        lines = difference_page(review, other, width_of(sys.stdout))
        emit([[(without_secrets(review, text), style) for text, style in line] for line in lines])
    return 2 if review.errors or (other is not None and other.errors) else 0


def _other(asked: str, review: Review) -> Review:
    """`RECIPE`, `RECIPE:VARIANT,VARIANT`, or `:VARIANT` of the same recipe."""
    recipe, _, listed = asked.partition(":")
    variants = tuple(word.strip() for word in listed.split(",") if word.strip())
    if not recipe and not variants:
        raise SettingError(f"--diff {asked!r} is malformed; write RECIPE, RECIPE:VARIANT or :VARIANT")
    return _review(recipe or review.experiment.recipe, Request(variants=variants))
