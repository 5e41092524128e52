"""One self-contained HTML page about one run, or about several side by side.

The page works offline: styles, curves and a few lines of script are inside it, and its own content security policy
forbids everything else. Whatever comes from files is escaped by `markup`.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashreinforce_molt import __version__
from flashreinforce_molt.telemetry.formatting import duration_text, number_text
from flashreinforce_molt.telemetry.markup import Html, joined, tag
from flashreinforce_molt.telemetry.redaction import redact
from flashreinforce_molt.telemetry.report_charts import chart_sections, colour
from flashreinforce_molt.telemetry.run_directory import write_atomically
from flashreinforce_molt.telemetry.run_record import RunRecord, mean, number_or_none, read_run, value_text

_KEY_SETTINGS = (
    "model.id",
    "model.revision",
    "model.config",
    "environment.name",
    "environment.options",
    "objective.delta",
    "objective.gate",
    "objective.aggregation",
    "objective.negative_token_fraction",
    "objective.importance_correction",
    "train.updates",
    "train.batch_size",
    "optim.lr",
    "optim.schedule",
    "rollout.in_flight",
    "rollout.queue_depth",
    "rollout.max_policy_lag",
    "rollout.publication",
    "rollout.temperature",
    "rollout.max_new_tokens",
    "engine.mode",
    "engine.workers",
    "engine.deterministic",
    "warm_start.steps",
    "seed",
)


def write_report(run_dirs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Path:
    """Write the page about one or several runs and return its path.

    ValueError names the run that cannot be read, and the fix.
    """
    if not run_dirs:
        raise ValueError("no run was given; name at least one run directory")
    runs = [read_run(run_dir) for run_dir in run_dirs]
    page = _page(runs)
    path = Path(output).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode("utf-8", "replace"))
    return path


def _page(runs: Sequence[RunRecord]) -> str:
    names = _names(runs)
    style, script = _resource("report.css"), _resource("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    body = _single(runs[0]) if len(runs) == 1 else _comparison(runs, names)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", " and ".join(names) + ", FlashREINFORCE"),
        tag("style", Html(style)),
    )
    footer = tag(
        "footer",
        "Drawn by flashreinforce_molt ",
        __version__,
        " from the run's own files; draw it again with ",
        tag("code", "flashreinforce-molt report ", " ".join(str(run.path) for run in runs)),
        ". Long curves are smoothed",
        "; the thin line behind them shows every update." if len(runs) == 1 else ".",
    )
    return "<!doctype html>\n" + tag(
        "html", head, tag("body", tag("main", body, footer), tag("script", Html(script))), lang="en"
    )


def _resource(name: str) -> str:
    return importlib.resources.files(__package__ or "").joinpath(name).read_text("utf-8")


def _names(runs: Sequence[RunRecord]) -> list[str]:
    """A short name of each run; the path where two would have the same."""
    short = [run.name for run in runs]
    return [name if short.count(name) == 1 else str(run.path) for name, run in zip(short, runs, strict=True)]


# -- one run ---------------------------------------------------------------------------------------------------


def _single(run: RunRecord) -> Html:
    return joined(
        tag(
            "header",
            tag("h1", _title(run)),
            tag("p", " · ".join(_facts(run)), class_="lead"),
        ),
        tag("div", map(_drawn_tile, _tiles(run)), class_="tiles"),
        _notes([(None, note) for note in _run_notes(run)]),
        chart_sections([run], [run.name]),
        _evaluations(run),
        _answers(run),
        _what_ran(run),
        _settings(run),
    )


def _title(run: RunRecord) -> str:
    recipe = run.text("recipe")
    variants = run.provenance.get("variants")
    if isinstance(variants, list) and variants:
        recipe += " + " + ", ".join(value_text(variant) for variant in variants[:10])
    return f"{recipe}: {run.name}" if recipe else run.name


def _facts(run: RunRecord) -> list[str]:
    model = run.setting("model.id")
    if model in ("", "none"):
        model = "model initialised here" if run.setting("model.config") not in ("", "none") else ""
    mode = " ".join(filter(None, [run.text("engine"), run.setting("engine.mode")]))
    facts = [
        model,
        run.setting("environment.name"),
        mode and f"{mode} engine",
        f"{run.updates[-1]:,} updates",
    ]
    return [fact for fact in [*facts, duration_text(run.last("wall_s"))] if fact and fact != "-"]


@dataclass(frozen=True)
class _Tile:
    name: str
    value: str
    more: str
    start: str = ""
    """What the value was at the beginning of the run."""


def _tiles(run: RunRecord) -> list[_Tile]:
    count = run.end_length
    begin, end = run.first_and_last(run.column("reward_mean"))
    acceptance = _known(run.column("acceptance_rate"))
    lags = _known(run.column("policy_lag_max"))
    tiles = [
        _Tile(
            "Training reward",
            number_text(end),
            f"means over the first and the last {f'{count} updates' if count > 1 else 'update'}",
            number_text(begin),
        ),
        _Tile(
            "Admitted",
            number_text(mean(acceptance), "fraction"),
            "of trajectories pass the trust region, on average; lowest batch "
            + number_text(min(acceptance, default=None), "fraction"),
        ),
        _Tile(
            "Policy lag",
            number_text(run.mean("policy_lag_mean")),
            f"versions, on average: {number_text(run.mean('lag_in_flight'))} in flight, "
            f"{number_text(run.mean('lag_in_queue'))} in queue; largest {number_text(max(lags, default=None))}",
        ),
        _Tile(
            "Rollout",
            number_text(run.mean("rollout_tokens_per_s")),
            "tokens per second, on average; the learner waited "
            f"{number_text(run.idle_share, 'fraction')} of its time",
        ),
        _Tile(
            "Wall time",
            duration_text(run.last("wall_s")),
            f"{run.updates[-1]:,} updates of {duration_text(run.mean('step_s'))}; "
            f"{number_text(run.last('trajectories_total'), 'count')} trajectories trained, "
            f"{number_text(run.last('dropped_total'), 'count')} dropped",
        ),
    ]
    return [_accuracy_tile(run), *tiles] if run.evaluations else tiles


def _accuracy_tile(run: RunRecord) -> _Tile:
    first, last = run.evaluations[0], run.evaluations[-1]
    more = [f"after {last['update']:,} updates, on {number_text(last.get('tasks'), 'count')} held-out tasks"]
    for name, words in (("greedy_accuracy", "greedy"), ("constant_answer_baseline", "best constant answer")):
        if last.get(name) is not None:
            more.append(f"{words} {number_text(last[name], 'fraction')}")
    start = number_text(first.get("sampled_accuracy"), "fraction") if len(run.evaluations) > 1 else ""
    return _Tile(
        "Sampled accuracy", number_text(last.get("sampled_accuracy"), "fraction"), "; ".join(more), start
    )


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _drawn_tile(tile: _Tile) -> Html:
    start = tag("span", tile.start, " → ", class_="from") if tile.start else None
    return tag(
        "div",
        tag("div", tile.name, class_="name"),
        tag("div", start, tile.value, class_="value"),
        tag("div", tile.more, class_="more"),
        class_="tile",
    )


def _run_notes(run: RunRecord) -> list[str]:
    notes = []
    steps = run.number("warm_start.steps")
    if steps:
        share = run.number("warm_start.correct_fraction")
        right = "" if share is None else f", {number_text(share, 'fraction')} of them right,"
        notes.append(
            f"Warm start: the model saw {steps:,.0f} supervised steps of demonstrations{right} before the first update. "
            "That is no part of the method; the accuracy at update 0 is what the warm start gave."
        )
    planned = run.number("train.updates")
    if planned and run.updates[-1] < planned:
        notes.append(f"The record ends at update {run.updates[-1]:,} of {planned:,.0f} planned ones.")
    if run.provenance.get("git") and run.text("git", "dirty") == "true":
        notes.append(
            "The checkout had uncommitted changes, so the recorded commit is not all the code that ran."
        )
    resumes = run.provenance.get("resumes")
    if isinstance(resumes, list) and resumes:
        after = [value_text(each.get("update")) for each in resumes if isinstance(each, Mapping)]
        notes.append(f"The run was continued after update {', '.join(after[:20])}.")
    return [*notes, *run.notes]


def _notes(notes: Sequence[tuple[str | None, str]]) -> Html | None:
    if not notes:
        return None
    items = [tag("li", tag("strong", f"{name}: ") if name else None, redact(note)) for name, note in notes]
    return tag("ul", items, class_="notes")


def _evaluations(run: RunRecord) -> Html | None:
    if not run.evaluations:
        return None
    shown = list(run.evaluations)
    if len(shown) > 40:
        shown = [*shown[:20], *shown[-20:]]
    rows = []
    for result in shown:
        rows.append(
            [
                number_text(result["update"], "count"),
                number_text(result.get("sampled_accuracy"), "fraction"),
                _noise(result),
                number_text(result.get("greedy_accuracy"), "fraction"),
                number_text(result.get("constant_answer_baseline"), "fraction"),
                f"{number_text(result.get('tasks'), 'count')} × {number_text(result.get('samples'), 'count')}",
                duration_text(result.get("wall_s")),
            ]
        )
    heads = [
        "After update",
        "Sampled",
        "± noise",
        "Greedy",
        "Best constant answer",
        "Tasks × samples",
        "Wall time",
    ]
    left_out = len(run.evaluations) - len(shown)
    return joined(
        tag("h2", "Held-out evaluations"),
        tag("p", f"{left_out} evaluations in the middle are left out of this table.", class_="soft")
        if left_out
        else None,
        _number_table(heads, rows),
    )


def _noise(result: Mapping[str, Any]) -> str:
    """Standard error of the sampled accuracy, as if every answer were independent."""
    accuracy, tasks, samples = (result.get(name) for name in ("sampled_accuracy", "tasks", "samples"))
    if (
        accuracy is None
        or tasks is None
        or samples is None
        or not (0 <= accuracy <= 1 <= min(tasks, samples))
    ):
        return "-"
    return number_text(math.sqrt(accuracy * (1 - accuracy) / float(tasks) / float(samples)), "fraction")


def _number_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    head = tag("tr", [tag("th", text, class_="number") for text in heads])
    body = [tag("tr", [tag("td", text, class_="number") for text in row]) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="sheet")


def _answers(run: RunRecord) -> Html | None:
    """Sample answers of the first and the last evaluation, where the run recorded some."""
    cards = []
    for result in dict.fromkeys((0, len(run.evaluations) - 1)) if run.evaluations else ():
        evaluation = run.evaluations[result]
        examples = evaluation.get("examples")
        if not isinstance(examples, list):
            continue
        for example in examples[:4]:
            if isinstance(example, Mapping):
                cards.append(_answer(evaluation["update"], example))
    return joined(tag("h2", "Answers"), tag("div", cards, class_="answers")) if cards else None


def _answer(update: int, example: Mapping[str, Any]) -> Html:
    score = number_or_none(example.get("score"))
    mark = None
    if score is not None:
        mark = tag("span", f"score {score:g}", class_="right" if score >= 1 else "wrong")
    texts = [
        (name, redact(str(example[name]))[:2000])
        for name in ("prompt", "response", "answer")
        if example.get(name) is not None
    ]
    return tag(
        "figure",
        tag("figcaption", tag("h3", f"After update {update:,}"), mark),
        [joined(tag("div", name, class_="soft"), tag("pre", text)) for name, text in texts],
    )


def _what_ran(run: RunRecord) -> Html:
    commit = run.text("git", "commit")
    rows = [
        ("recipe", run.text("recipe")),
        ("variants", run.text("variants")),
        ("engine", run.text("engine")),
        ("started", run.text("started")),
        ("flashreinforce_molt", " ".join(filter(None, [run.text("version"), commit and f"commit {commit}"]))),
        ("python", run.text("python")),
        (
            "platform",
            ", ".join(filter(None, [run.text("platform"), run.text("cpus") and f"{run.text('cpus')} CPUs"])),
        ),
    ]
    versions = run.provenance.get("versions")
    if isinstance(versions, Mapping):
        rows.append(
            (
                "versions",
                ", ".join(redact(f"{key} {value_text(value)}") for key, value in list(versions.items())[:40]),
            )
        )
    rows = [(name, value) for name, value in rows if value]
    command = run.text("command")
    return joined(
        tag("h2", "What ran"),
        tag(
            "div",
            tag("table", tag("tbody", [tag("tr", tag("th", n), tag("td", v)) for n, v in rows])),
            class_="sheet",
        )
        if rows
        else tag("p", "Nothing is known about what ran.", class_="soft"),
        tag("details", tag("summary", "Command line"), tag("div", tag("pre", command), class_="sheet"))
        if command
        else None,
    )


def _settings(run: RunRecord) -> Html | None:
    if not run.settings:
        return None
    key = [name for name in _KEY_SETTINGS if name in run.settings and run.setting(name) not in ("none", "")]
    rest = [name for name in run.settings if name not in key]
    return joined(
        tag("h2", "Settings"),
        _setting_table(run, key),
        tag("details", tag("summary", f"All other settings ({len(rest)})"), _setting_table(run, rest))
        if rest
        else None,
    )


def _setting_table(run: RunRecord, names: Sequence[str]) -> Html:
    head = tag("tr", tag("th", "Setting"), tag("th", "Value"), tag("th", "Source"))
    rows = [
        tag(
            "tr",
            tag("th", name, class_="mono"),
            tag("td", run.settings[name].value, class_="mono"),
            tag("td", run.settings[name].source, class_="source"),
        )
        for name in names
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="sheet")


# -- several runs ----------------------------------------------------------------------------------------------


def _comparison(runs: Sequence[RunRecord], names: Sequence[str]) -> Html:
    owners: dict[str, list[str]] = {}
    for name, run in zip(names, runs, strict=True):
        for note in _run_notes(run):
            owners.setdefault(note, []).append(name)
    everyone = len(runs)
    notes = [("all" if len(names) == everyone else ", ".join(names), note) for note, names in owners.items()]
    return joined(
        tag("header", tag("h1", f"{len(runs)} runs compared"), tag("p", ", ".join(names), class_="lead")),
        _overview(runs, names),
        _notes(notes),
        chart_sections(runs, names),
        _differences(runs, names),
    )


def _overview(runs: Sequence[RunRecord], names: Sequence[str]) -> Html:
    heads = [
        "Recipe",
        "Updates",
        "Accuracy",
        "Reward",
        "Admitted",
        "Lag",
        "Tokens/s",
        "Learner idle",
        "Wall time",
    ]
    rows = []
    for index, (run, name) in enumerate(zip(runs, names, strict=True)):
        accuracies = [result.get("sampled_accuracy") for result in run.evaluations]
        begin, end = run.first_and_last(run.column("reward_mean"))
        cells = [
            run.text("recipe") or "-",
            number_text(run.updates[-1], "count"),
            _from_to(accuracies[0], accuracies[-1], "fraction") if accuracies else "-",
            _from_to(begin, end),
            number_text(run.mean("acceptance_rate"), "fraction"),
            number_text(run.mean("policy_lag_mean")),
            number_text(run.mean("rollout_tokens_per_s")),
            number_text(run.idle_share, "fraction"),
            duration_text(run.last("wall_s")),
        ]
        swatch = tag("span", class_=f"swatch c{colour(index)}")
        rows.append(tag("tr", tag("th", swatch, name), [tag("td", cell, class_="number") for cell in cells]))
    head = tag("tr", tag("th", "Run"), [tag("th", text, class_="number") for text in heads])
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="sheet")


def _from_to(begin: float | None, end: float | None, unit: str = "") -> str:
    return f"{number_text(begin, unit)} → {number_text(end, unit)}"


def _differences(runs: Sequence[RunRecord], names: Sequence[str]) -> Html:
    facts: list[dict[str, str]] = []
    for run in runs:
        versions = run.provenance.get("versions")
        facts.append(
            {
                "recipe": run.text("recipe"),
                "variants": run.text("variants"),
                "engine": run.text("engine"),
                "commit": run.text("git", "commit")[:12],
                "python": run.text("python"),
                "platform": run.text("platform"),
                **{
                    redact(f"{package} version"): value_text(version)
                    for package, version in (versions.items() if isinstance(versions, Mapping) else ())
                },
                **{name: setting.value for name, setting in run.settings.items()},
            }
        )
    every = dict.fromkeys(name for fact in facts for name in fact)
    differing = [name for name in every if len({fact.get(name, "") for fact in facts}) > 1]
    title = tag("h2", "Settings that differ")
    if not differing:
        return joined(
            title, tag("p", "None: the runs have the same settings, code and versions.", class_="soft")
        )
    head = tag("tr", tag("th", "Setting"), [tag("th", name) for name in names])
    rows = [
        tag(
            "tr",
            tag("th", name, class_="mono"),
            [tag("td", fact.get(name) or "-", class_="mono") for fact in facts],
        )
        for name in differing[:300]
    ]
    return joined(title, tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="sheet"))
