"""The review as a page of text."""

from __future__ import annotations

import json
import shlex
from itertools import groupby
from typing import Any

from flashreinforce_molt.config.experiment import Setting
from flashreinforce_molt.config.locks import short_revision
from flashreinforce_molt.config.typed import show
from flashreinforce_molt.config.validate_cluster import actor_gpus, data_parallel, rollout_gpus
from flashreinforce_molt.molt.interface import molt_options
from flashreinforce_molt.molt.options import MOLT_VERSION
from flashreinforce_molt.review.document import Review
from flashreinforce_molt.review.layout import Line, Span, columns, counted, heading, paragraph
from flashreinforce_molt.review.molt_flags import Flag
from flashreinforce_molt.review.secrets import without_secrets

_MARKS = {"changed": "*", "ours": "o", "": " "}
_LEVELS = {"error": 0, "warning": 1, "ok": 2}


def page(review: Review, width: int) -> list[Line]:
    """All sections, without secrets."""
    sections = (
        *_title(review, width),
        *_changes(review, width),
        *_pins(review, width),
        *_flags(review, width),
        *_plan(review, width),
        *_environment(review, width),
        *_command(review),
        *_start(review),
        *_checks(review, width),
        *_verdict(review),
    )
    texts = {str(index): [text for text, _ in line] for index, line in enumerate(sections)}
    shown = without_secrets(review, texts)
    return [
        list(zip(shown[str(index)], (style for _, style in line), strict=True))
        for index, line in enumerate(sections)
    ]


def standing(setting: Setting | None) -> str:
    """How a value stands to the publication: "changed" from the recipe, "ours" where nothing is published, or ""."""
    if setting is None:
        return ""
    if setting.differs:
        return "changed"
    return "ours" if setting.source.startswith("ours") else ""


def _title(review: Review, width: int) -> list[Line]:
    experiment = review.experiment
    lines: list[Line] = [
        [
            (f"{experiment.recipe} on {experiment.engine}", "title"),
            ("  (dry run: nothing was started)", "source"),
        ]
    ]
    lines += paragraph(experiment.summary, width, indent="")
    lines.append([("variants: " + (", then ".join(experiment.variants) or "none"), "")])
    for need in experiment.requires:
        lines += paragraph(f"needs {need}", width, indent="", hanging="  ", style="source")
    return lines


def _changes(review: Review, width: int) -> list[Line]:
    changed = [setting for setting in review.experiment.settings.values() if standing(setting) == "changed"]
    if not changed:
        return []
    rows: list[list[Span]] = []
    for setting in changed:
        was = f"{setting.layer}: {setting.source}; {_replaced(setting)}"
        rows.append([("*", "changed"), (setting.name, ""), (show(setting.value), "value"), (was, "changed")])
    return [*heading("not as in the recipe"), *columns(rows, (2, 36, 16), width)]


def _replaced(setting: Setting) -> str:
    """Everything that the value replaced, down to what the recipe says."""
    first = setting.replaced.index(setting.recipe_said) if setting.recipe_said else 0
    chain = [f"{show(value)} ({_origin(layer, source)})" for layer, value, source in setting.replaced[first:]]
    return "replaces " + ", before that ".join(reversed(chain))


def _origin(layer: str, source: str) -> str:
    return layer if source == layer else f"{layer}: {source}"


def _pins(review: Review, width: int) -> list[Line]:
    rows: list[list[Span]] = []
    for pin in review.pins:
        version: Span = (
            ("UNPINNED", "warning") if pin.version is None else (short_revision(pin.version), "value")
        )
        rows.append([(f"  {pin.kind}", ""), (pin.name, ""), version, (pin.source, "source")])
    return [*heading("pins"), *columns(rows, (9, 42, 12), width)] if rows else []


def _flags(review: Review, width: int) -> list[Line]:
    molt = review.experiment.engine == "molt"
    what = f"flags for Molt {MOLT_VERSION}" if molt else "settings"
    lines = heading(what)
    lines.append([("  * changed from the recipe    o ours, nothing is published", "source")])
    for group, flags in groupby(review.flags, key=lambda flag: flag.group):
        lines.append([(f"  {group}", "title")])
        lines += columns([_flag_row(flag) for flag in flags], (2, 36, 22), width)
    if molt:
        others = len(molt_options()) - len(review.flags)
        lines.append(
            [
                (
                    f"  {others} other options of Molt keep its defaults (flashreinforce_molt/molt/interface.json)",
                    "source",
                )
            ]
        )
    return lines


def _flag_row(flag: Flag) -> list[Span]:
    mark = standing(flag.setting)
    said = flag.setting.recipe_said if flag.setting is not None and mark == "changed" else None
    beside = f"; {_origin(said[0], f'{show(said[1])}, {said[2]}')}" if said else ""
    origin = "" if flag.layer in ("table", "default") else f"{flag.layer}: "
    return [
        (f" {_MARKS[mark]}", mark),
        (flag.name, mark if mark == "changed" else ""),
        (_value(flag.value), "value"),
        (origin + flag.source + beside, "changed" if mark == "changed" else "source"),
    ]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_value(each) for each in value)
    if isinstance(value, (bool, dict)) or value is None:
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plan(review: Review, width: int) -> list[Line]:
    experiment, plan = review.experiment, review.plan
    config = experiment.config
    rows: list[tuple[str, str]] = []
    if experiment.engine == "molt":
        have = config.cluster.nodes * config.cluster.gpus_per_node
        rows.append(
            (
                "GPUs",
                f"{actor_gpus(config)} learner ({data_parallel(config)} data-parallel replicas, machines: "
                f"{config.cluster.actor_nodes}) + "
                f"{rollout_gpus(config)} rollout ({config.cluster.rollout_engines} engines) of {have} on "
                f"{counted(config.cluster.nodes, 'machine')} with {config.cluster.gpu_memory_gib:g} GiB each",
            )
        )
    if plan is not None:
        active = (
            f", {plan.active_parameters / 1e9:.2f} B active"
            if plan.active_parameters != plan.parameters
            else ""
        )
        rows += [
            ("parameters", f"{plan.parameters / 1e9:.3f} B{active}"),
            ("learner GPU", plan.actor.text),
            ("rollout GPU", plan.rollout.text),
            (
                "KV cache",
                f"{plan.kv_capacity_tokens:,} tokens in each engine: {plan.full_length_slots} trajectories of full "
                f"length, {plan.in_flight_per_engine} are in flight",
            ),
        ]
    elif experiment.engine == "molt":
        rows.append(
            ("memory", f"unknown: {config.model.id} is not in flashreinforce_molt/config/model_shapes.py")
        )
    limit = config.train.batch_size * config.rollout.max_new_tokens
    rows += [
        ("updates", f"{config.train.updates:,} on {config.train.batch_size} fresh trajectories each"),
        (
            "tokens",
            f"at most {limit:,} policy tokens in an update, when every trajectory reaches its limit; no mean length is "
            "published to expect less from, response_tokens_mean measures it",
        ),
        ("policy lag", review.lag.text),
    ]
    cells = [[(f"  {name}", ""), (text, "error" if "DOES NOT FIT" in text else "")] for name, text in rows]
    note = "  memory is an estimate (review/plan.py says how); parameter counts are exact"
    return [*heading("resource plan"), *columns(cells, (13,), width), *([[(note, "source")]] if plan else [])]


def _environment(review: Review, width: int) -> list[Line]:
    rows = [
        [(f"  {variable.name}", ""), (variable.value or "(set it)", "value"), (variable.why, "source")]
        for variable in review.env
    ]
    return [*heading("environment variables"), *columns(rows, (32, 10), width)] if rows else []


def _command(review: Review) -> list[Line]:
    lines: list[str] = []
    for word in review.command:
        quoted = shlex.quote(word)
        if lines and not word.startswith("--"):
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    last = len(lines) - 1
    shown: list[Line] = [
        [("  " + ("  " if index else "") + line + ("" if index == last else " \\"), "")]
        for index, line in enumerate(lines)
    ]
    return [*heading("exact command"), *shown]


def _start(review: Review) -> list[Line]:
    return [*heading("how to start"), *([(f"  {line}", "")] for line in review.start)]


def _checks(review: Review, width: int) -> list[Line]:
    lines = heading("checks")
    for check in sorted(review.checks, key=lambda check: _LEVELS[check.level]):
        cells: list[Span] = [
            (f"  {check.level}", check.level),
            (check.id, ""),
            (check.message, "" if check.level != "ok" else "source"),
        ]
        lines += columns([cells], (9, 20), width)
    return lines


def _verdict(review: Review) -> list[Line]:
    errors, warnings = len(review.errors), sum(check.level == "warning" for check in review.checks)
    tail = f", {counted(warnings, 'warning')}" if warnings else ""
    if errors:
        return [[], [(f"{counted(errors, 'error')}{tail}: mend before the start", "error")]]
    return [[], [(f"ready to start: no errors{tail}", "ok")]]
