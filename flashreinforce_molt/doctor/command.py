"""`flashreinforce-molt doctor`: say what this machine lacks for a recipe."""

from __future__ import annotations

import argparse
import json
import sys

from flashreinforce_molt.config.experiment import Check
from flashreinforce_molt.doctor.checks import examine, examine_every_recipe
from flashreinforce_molt.review.command import reviewed
from flashreinforce_molt.review.layout import Line, columns, emit, width_of
from flashreinforce_molt.telemetry.redaction import redact


def run(options: argparse.Namespace) -> int:
    """Print every finding; 2 when the recipe cannot start here. Without a recipe, the plugin is examined as a whole."""
    if options.recipe is None:
        return _told(
            options, "Molt", "every recipe and variant", examine_every_recipe(), "ready for a recipe"
        )
    review = reviewed(options)
    name, engine = review.experiment.recipe, review.experiment.engine
    if review.errors:
        return _told(options, engine, name, [*review.errors], "")
    return _told(options, engine, name, examine(review), f"ready: {review.start[-1]}")


def _told(options: argparse.Namespace, engine: str, name: str, checks: list[Check], ready: str) -> int:
    failed = [check for check in checks if check.level == "error"]
    if options.format == "json":
        found = [{"id": check.id, "level": check.level, "message": check.message} for check in checks]
        report = {"recipe": options.recipe and name, "engine": engine.lower(), "checks": found}
        print(json.dumps(redact(report), indent=2, ensure_ascii=False))
        return 2 if failed else 0
    emit(
        [
            [(f"{name} on {engine}: what this machine has for it", "title")],
            *finding_lines(checks, width_of(sys.stdout)),
        ]
    )
    if not ready:
        verdict = "the recipe itself has errors; the machine was not examined"
    elif failed:
        verdict = f"{len(failed)} of {len(checks)} checks failed"
    else:
        verdict = ready
    emit([[(verdict, "error" if failed else "ok")]])
    return 2 if failed else 0


def finding_lines(checks: list[Check], width: int) -> list[Line]:
    """Failures first."""
    order = {"error": 0, "warning": 1, "ok": 2}
    lines: list[Line] = []
    for check in sorted(checks, key=lambda check: order[check.level]):
        cells = [(f"  {check.level}", check.level), (check.id, ""), (check.message, "")]
        lines += columns([cells], (9, 12), width)
    return [[(redact(text), style) for text, style in line] for line in lines]
