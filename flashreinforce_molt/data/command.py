"""`flashreinforce-molt prepare NAME`: write the data of a recipe, and say what was dropped and why."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from flashreinforce_molt.command_line import CommandParser
from flashreinforce_molt.data import catalogue
from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.telemetry.redaction import redact

SUMMARIES = {
    "dapo": "7,500 distinct DAPO-Math questions (qwen_math)",
    "sanity_r1": "1,460 MATH questions (r1)",
    "math_eval": "AIME24, AIME25, AMC23, MATH-500, Minerva, OlympiadBench",
    "tools": "the questions of dapo, AMC23, Minerva and AIME25 with the Python tool (python_tools, moe)",
    "alfworld": "lists of ALFWorld games (alfworld)",
    "smollm2": "the model of recipe smollm2, as models/smollm2-135m-instruct",
}
_DATA_SETS = {data.name: data for data in (catalogue.DAPO, catalogue.SANITY_R1, *catalogue.MATH_EVALUATION)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(f"{name:10} {summary}" for name, summary in SUMMARIES.items())
    parser.add_argument("name", choices=tuple(SUMMARIES), metavar="NAME", help="what to prepare, see below")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="[SET=]PATH",
        help="local file or folder in place of the hub, of one data set or of all; repeatable",
    )
    parser.add_argument(
        "--output", metavar="DIR", help="folder of all prepared data (default: data; smollm2: models)"
    )
    parser.add_argument(
        "--rows", type=int, metavar="N", help="training rows to take, other than the published number"
    )
    parser.add_argument(
        "--revision",
        action="append",
        default=[],
        metavar="[SET=]COMMIT",
        help="revision on the hub; default: the locked one",
    )
    parser.add_argument(
        "--lock", metavar="FILE", help="lock file; default: recipes/locks/datasets.json of the checkout"
    )
    parser.add_argument(
        "--allow-other-counts",
        action="store_true",
        help="write a set that has another size than the published one",
    )


def run(options: argparse.Namespace) -> int:
    """Prepare; DataError when a source is absent or not what was published."""
    if options.name == "smollm2":
        from flashreinforce_molt.data.smollm2 import prepare_smollm2

        gguf = Path(options.source[0]).expanduser() if options.source else None
        print(f"wrote {prepare_smollm2(Path(options.output or 'models'), gguf=gguf)}")
        return 0
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError("preparing data needs pyarrow: pip install -e '.[tools]'")
    if options.rows is not None and options.rows < 1:
        raise DataError(f"--rows {options.rows} must be at least 1")
    from flashreinforce_molt.data.locks import default_lock_file
    from flashreinforce_molt.data.prepare import Request, prepare

    request = Request(
        output=Path(options.output or "data"),
        sources={name: Path(path).expanduser() for name, path in _by_set("--source", options.source).items()},
        revisions=_by_set("--revision", options.revision),
        rows=options.rows,
        allow_other_counts=options.allow_other_counts,
        lock_file=Path(options.lock) if options.lock else default_lock_file(),
    )
    print(f"wrote {prepare(options.name, request)}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `scripts/prepare_data.py`; 2 with a message when the data cannot be prepared."""
    import sys

    parser = CommandParser(description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except DataError as error:
        print(redact(f"error: {error}"), file=sys.stderr)
        return 2


def _by_set(option: str, values: Sequence[str]) -> dict[str, str]:
    """`name=value` for one data set, `value` for all."""
    given: dict[str, str] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        name, value = (name, rest) if equals and name in {*_DATA_SETS, "alfworld"} else ("", value)
        if name in given:
            raise DataError(
                f"{option} is given twice for {name or 'all data sets'}: {given[name]} and {value}"
            )
        given[name] = value
    return given
