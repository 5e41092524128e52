"""The command line: `flashreinforce-molt` and, for `scripts/train_molt.py` and the launchers, `train` alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flashreinforce_molt import __version__
from flashreinforce_molt.config import SettingError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `flashreinforce-molt`."""
    from flashreinforce_molt.telemetry import report_command

    parser = argparse.ArgumentParser(prog="flashreinforce-molt", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train a recipe, or review it with --dry-run")
    add_train_arguments(train)
    train.set_defaults(run=run_train)
    report = commands.add_parser("report", help="redraw the report of a run, or compare several")
    report_command.add_arguments(report)
    report.set_defaults(run=report_command.run)
    return _guarded(parser.parse_args(arguments))


def train_main(arguments: Sequence[str] | None = None, *, recipe: str | None = None, description: str | None = None) -> int:
    """Entry point of `scripts/train_molt.py`, and of the launchers, which fix the recipe."""
    parser = argparse.ArgumentParser(description=description or "Train a FlashREINFORCE recipe.")
    add_train_arguments(parser, fixed_recipe=recipe)
    parser.set_defaults(run=run_train)
    return _guarded(parser.parse_args(arguments))


def add_train_arguments(parser: argparse.ArgumentParser, *, fixed_recipe: str | None = None) -> None:
    """Options of the training command."""
    if fixed_recipe is None:
        parser.add_argument("--recipe", metavar="NAME", help="experiment to run; see --list")
    else:
        parser.set_defaults(recipe=fixed_recipe)
    parser.add_argument("--variant", action="append", default=[], metavar="V", help="variant of the recipe; repeatable")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="change one setting; repeatable")
    parser.add_argument("--engine", choices=("local", "molt", "megatron"), help="where it runs; default: the recipe's first")
    parser.add_argument("--output", metavar="DIR", help="run directory; default: runs/RECIPE")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the run directory")
    parser.add_argument("--list", action="store_true", help="list the recipes and their variants")


def run_train(options: argparse.Namespace) -> int:
    """Train as asked; SettingError when something is wrong with the request."""
    from flashreinforce_molt.recipes import available_recipes, load_experiment

    if options.list or options.recipe is None:
        for name, recipe in available_recipes().items():
            variants = f" (variants: {', '.join(recipe.variants)})" if recipe.variants else ""
            print(f"{name:14} {'/'.join(recipe.engines):12} {recipe.summary}{variants}")
        if options.list:
            return OK
        raise SettingError("--recipe is missing; the list above shows which recipes run on the local engine")
    experiment = load_experiment(
        options.recipe, variants=options.variant, overrides=options.overrides, engine=options.engine
    )
    if experiment.engine != "local":
        raise SettingError(f"--engine {experiment.engine} is not available in this version; use --engine local")
    from flashreinforce_molt.rollout.processes import prestart

    prestart()
    from flashreinforce_molt.training import train

    return train(experiment, options.output or f"runs/{experiment.recipe}", resume=options.resume)


def _guarded(options: argparse.Namespace) -> int:
    """Run the chosen command; a person's mistake becomes a message and code 2, never a traceback."""
    try:
        return options.run(options)
    except (SettingError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except (RuntimeError, FloatingPointError, OSError) as error:
        print(f"run failed: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("stopped at once; the newest checkpoint is from before", file=sys.stderr)
        return INTERRUPTED
