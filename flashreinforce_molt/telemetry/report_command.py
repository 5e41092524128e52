"""`flashreinforce-molt report RUN [RUN ...]`: draw one run, or compare several."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directory; several are compared on one page"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="page to write; default: report.html in the run directory, or comparison.html beside the first run",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the page; 0, or 2 with a message when a run cannot be read or the page cannot be written."""
    from flashreinforce_molt.telemetry.redaction import redact
    from flashreinforce_molt.telemetry.report import write_report

    runs = [Path(run) for run in arguments.runs]
    if arguments.output:
        output = Path(arguments.output)
    elif len(runs) == 1:
        output = runs[0] / "report.html"
    else:
        output = runs[0].absolute().parent / "comparison.html"
    try:
        page = write_report(runs, output)
    except ValueError as error:
        print(redact(f"error: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(
            redact(f"error: cannot write {output}: {error.strerror or error}; give another --output"),
            file=sys.stderr,
        )
        return 2
    print(f"wrote {page}")
    return 0
