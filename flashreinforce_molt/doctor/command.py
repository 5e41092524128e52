"""`flashreinforce-molt doctor`: say what this machine lacks for a recipe."""

from __future__ import annotations

import argparse
import json
import sys

from flashreinforce_molt.config.experiment import Check
from flashreinforce_molt.doctor.checks import examine
from flashreinforce_molt.review.command import reviewed
from flashreinforce_molt.review.layout import Line, columns, emit, width_of
from flashreinforce_molt.telemetry.redaction import redact


def run(options: argparse.Namespace) -> int:
    """Print every finding; 2 when the recipe cannot start here."""
    review = reviewed(options)
    checks = [*review.errors] or examine(review)
    failed = [check for check in checks if check.level == "error"]
    if options.format == "json":
        found = [{"id": check.id, "level": check.level, "message": check.message} for check in checks]
        report = {"recipe": review.experiment.recipe, "engine": review.experiment.engine, "checks": found}
        print(json.dumps(redact(report), indent=2, ensure_ascii=False))
        return 2 if failed else 0
    title = f"{review.experiment.recipe} on {review.experiment.engine}: what this machine has for it"
    emit([[(title, "title")], *finding_lines(checks, width_of(sys.stdout))])
    if review.errors:
        emit([[("the recipe itself has errors; the machine was not examined", "error")]])
    elif failed:
        emit([[(f"{len(failed)} of {len(checks)} checks failed", "error")]])
    else:
        emit([[(f"ready: {' '.join(review.start[-1:])}", "ok")]])
    return 2 if failed else 0


def finding_lines(checks: list[Check], width: int) -> list[Line]:
    """Failures first."""
    order = {"error": 0, "warning": 1, "ok": 2}
    lines: list[Line] = []
    for check in sorted(checks, key=lambda check: order[check.level]):
        cells = [(f"  {check.level}", check.level), (check.id, ""), (check.message, "")]
        lines += columns([cells], (9, 12), width)
    return [[(redact(text), style) for text, style in line] for line in lines]
