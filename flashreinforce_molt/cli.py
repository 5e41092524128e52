"""The command line: `flashreinforce-molt` and, for `scripts/train_molt.py` and the launchers, `train` alone."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from flashreinforce_molt import __version__
from flashreinforce_molt.command_line import CommandParser
from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.experiment import ENGINES

OK, FAILED, BAD_INPUT, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141

_COMMANDS = {
    "report": (
        "flashreinforce_molt.telemetry.report_command",
        "redraw the report of a run, or compare several",
    ),
    "prepare": ("flashreinforce_molt.data.command", "prepare training and evaluation data"),
}
"""Commands with a module of their own: `add_arguments(parser)` and `run(options)`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `flashreinforce-molt`."""
    parser = CommandParser(prog="flashreinforce-molt", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train a recipe, or review it with --dry-run")
    add_train_arguments(train)
    train.set_defaults(run=run_train)
    review = commands.add_parser("review", help="show every flag, check and plan of a recipe; starts nothing")
    add_experiment_arguments(review)
    add_review_arguments(review)
    review.set_defaults(run=_run_review)
    doctor = commands.add_parser("doctor", help="say what this machine lacks for a recipe")
    add_experiment_arguments(doctor)
    doctor.add_argument(
        "--format", choices=("text", "json"), default="text", help="how to print the findings"
    )
    doctor.set_defaults(run=_run_doctor)
    for name, (module, summary) in _COMMANDS.items():
        if (
            importlib.util.find_spec(module.rpartition(".")[0]) is None
            or importlib.util.find_spec(module) is None
        ):
            continue
        command = commands.add_parser(name, help=summary)
        implementation = importlib.import_module(module)
        implementation.add_arguments(command)
        command.set_defaults(run=implementation.run)
    return _guarded(parser.parse_args(arguments))


def train_main(
    arguments: Sequence[str] | None = None, *, recipe: str | None = None, description: str | None = None
) -> int:
    """Entry point of `scripts/train_molt.py`, and of the launchers, which fix the recipe."""
    parser = CommandParser(
        description=description or "Train a FlashREINFORCE recipe.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_train_arguments(parser, fixed_recipe=recipe)
    parser.set_defaults(run=run_train)
    return _guarded(parser.parse_args(arguments))


def add_train_arguments(parser: argparse.ArgumentParser, *, fixed_recipe: str | None = None) -> None:
    """Options of the training command."""
    add_experiment_arguments(parser, fixed_recipe=fixed_recipe)
    parser.add_argument("--list", action="store_true", help="list the recipes and their variants")
    parser.add_argument("--dry-run", action="store_true", help="review everything and start nothing")
    parser.add_argument(
        "--replay-batch",
        type=_text,
        metavar="FILE",
        help="run the update of a batch kept under nonfinite/ once more, and train nothing",
    )
    add_review_arguments(parser)


def add_experiment_arguments(parser: argparse.ArgumentParser, *, fixed_recipe: str | None = None) -> None:
    """What names an experiment and where it runs."""
    engines: Sequence[str] = ENGINES
    if fixed_recipe is None:
        parser.add_argument(
            "--recipe", type=_text, metavar="NAME", help="experiment to run: a name or a .yaml file"
        )
    else:
        from flashreinforce_molt.recipes import engines_of

        parser.set_defaults(recipe=fixed_recipe)
        engines = engines_of(fixed_recipe)
    parser.add_argument(
        "--variant", action="append", default=[], metavar="V", help="variant of the recipe; repeatable"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="change one setting; repeatable",
    )
    parser.add_argument("--engine", choices=engines, help="where it runs; default: the recipe's first")
    parser.add_argument("--output", type=_text, metavar="DIR", help="run directory; default: runs/RECIPE")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint in the run directory"
    )
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="resume although settings of the method differ from those the run began with",
    )


def _text(word: str) -> str:
    """A word of the command line that an empty shell variable did not eat."""
    if not word.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return word


def add_review_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the dry run."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how to print the review")
    parser.add_argument(
        "--diff", metavar="OTHER", help="compare the review with RECIPE, RECIPE:VARIANT or :VARIANT"
    )


def run_train(options: argparse.Namespace) -> int:
    """Train as asked; SettingError when something is wrong with the request."""
    if options.list:
        return _list_recipes()
    if options.dry_run or options.diff is not None:
        return _run_review(options)
    if options.replay_batch is not None:
        return _replay(options)
    if options.resume:
        _as_recorded(options)
    if options.recipe is None:
        _list_recipes()
        raise SettingError(
            "--recipe is missing; of those above, quickstart runs on this machine without a GPU"
        )
    from flashreinforce_molt.recipes import load_experiment, resolve_experiment

    resolution = resolve_experiment(
        options.recipe, variants=options.variant, overrides=options.overrides, engine=options.engine
    )
    if resolution.experiment.engine == "molt":
        from flashreinforce_molt.doctor.start import start_molt
        from flashreinforce_molt.review.command import reviewed

        return start_molt(reviewed(options), resume=options.resume, accept_changes=options.accept_changes)
    experiment = load_experiment(
        options.recipe, variants=options.variant, overrides=options.overrides, engine=options.engine
    )
    from flashreinforce_molt.rollout.processes import prestart

    prestart()
    from flashreinforce_molt.training import train

    return train(
        experiment,
        options.output or f"runs/{experiment.recipe}",
        resume=options.resume,
        accept_changes=options.accept_changes,
    )


def _as_recorded(options: argparse.Namespace) -> None:
    """What a resumed run began with, below what the command line says now."""
    from flashreinforce_molt.resuming import recorded_request

    output = options.output or (f"runs/{options.recipe}" if options.recipe else None)
    if output is None:
        raise SettingError("--resume needs --output, the run directory to go on in")
    recipe, variants, overrides = recorded_request(Path(output))
    options.recipe = options.recipe or recipe
    options.variant = options.variant or variants
    options.overrides = [*overrides, *options.overrides]


def _replay(options: argparse.Namespace) -> int:
    """Under the settings that the run directory records; `--set` tries others."""
    path = Path(options.replay_batch)
    if not path.is_file():
        raise SettingError(f"--replay-batch {path} is no file; give a batch.safetensors under nonfinite/")
    options.output = options.output or str(path.absolute().parents[2])
    _as_recorded(options)
    from flashreinforce_molt.recipes import load_experiment

    experiment = load_experiment(
        options.recipe, variants=options.variant, overrides=options.overrides, engine=options.engine
    )
    if experiment.engine == "molt":
        raise SettingError("--replay-batch reads batches of the engines local and megatron; Molt keeps none")
    from flashreinforce_molt.replay import replay

    return replay(path, experiment)


def _list_recipes() -> int:
    from flashreinforce_molt.recipes import available_recipes

    for name, recipe in available_recipes().items():
        variants = f" (variants: {', '.join(recipe.variants)})" if recipe.variants else ""
        print(f"{name:14} {'/'.join(recipe.engines):12} {recipe.summary}{variants}")
    return OK


def _run_review(options: argparse.Namespace) -> int:
    from flashreinforce_molt.review.command import run_review

    return run_review(options)


def _run_doctor(options: argparse.Namespace) -> int:
    from flashreinforce_molt.doctor.command import run

    return run(options)


def _guarded(options: argparse.Namespace) -> int:
    """Run the chosen command; a person's mistake becomes a message and code 2, never a traceback."""
    os.umask(os.umask(0o022) | 0o002)  # nothing that a run writes is for everybody to change
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError as error:
        return PIPE_CLOSED if _nobody_reads() else _ended(f"run failed: {error}", FAILED)
    except (SettingError, ValueError) as error:
        return _ended(f"error: {error}", BAD_INPUT)
    except (RuntimeError, FloatingPointError, OSError) as error:
        return _ended(f"run failed: {error}", FAILED)
    except KeyboardInterrupt as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third one would only spoil the exit code
        print(stop or "stopped at once", file=sys.stderr)
        return INTERRUPTED


def _nobody_reads() -> bool:
    """Whether the broken pipe is our own output, whose reader has seen enough; then nothing more is written."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # a stream of a test, or a closed one
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return closed


def _ended(message: str, code: int) -> int:
    from flashreinforce_molt.telemetry.redaction import redact

    print(redact(message), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
