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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashreinforce_molt import __version__
from flashreinforce_molt.telemetry.formatting import duration_text, number_text
from flashreinforce_molt.telemetry.markup import Html, joined, tag
from flashreinforce_molt.telemetry.metrics import METRICS
from flashreinforce_molt.telemetry.run_directory import write_atomically
from flashreinforce_molt.telemetry.run_record import RunRecord, read_run, value_text
from flashreinforce_molt.telemetry.svg import Guide, Series, line_chart, stacked_chart

_COLOURS = 8
_ENDS = 0.05
"""Share of the updates at the beginning and at the end that 'first' and 'last' are means over."""

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
        ". Curves are thin where they show every update and thick where they are smoothed.",
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
        tag("div", [_tile(*tile) for tile in _tiles(run)], class_="tiles"),
        _notes([(None, note) for note in _run_notes(run)]),
        [_chart_section(title, charts) for title, charts in _charts([run], [run.name])],
        _not_measured([run]),
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
    return [fact for fact in [*facts, duration_text(_last(run.column("wall_s")))] if fact and fact != "-"]


Tile = tuple[str, str, str, str]
"""Name, value, what it started from, and a line below."""


def _tiles(run: RunRecord) -> list[Tile]:
    tiles: list[Tile] = []
    if run.evaluations:
        first, last = run.evaluations[0], run.evaluations[-1]
        more = [
            f"after {last['update']:,} updates, on {number_text(last.get('tasks'), 'count')} held-out tasks"
        ]
        if last.get("greedy_accuracy") is not None:
            more.append(f"greedy {number_text(last['greedy_accuracy'], 'fraction')}")
        if last.get("constant_answer_baseline") is not None:
            more.append(f"best constant answer {number_text(last['constant_answer_baseline'], 'fraction')}")
        start = number_text(first.get("sampled_accuracy"), "fraction") if len(run.evaluations) > 1 else ""
        tiles.append(
            (
                "Sampled accuracy",
                number_text(last.get("sampled_accuracy"), "fraction"),
                start,
                "; ".join(more),
            )
        )
    count = _end_length(run)
    many = f"{count} updates" if count > 1 else "update"
    begin, end = _ends(run.column("reward_mean"), count)
    tiles.append(
        ("Training reward", number_text(end), number_text(begin), f"means over the first and the last {many}")
    )
    acceptance = run.column("acceptance_rate")
    lowest = min((value for value in acceptance if value is not None), default=None)
    tiles.append(
        (
            "Admitted",
            number_text(_mean(acceptance), "fraction"),
            "",
            f"of trajectories pass the trust region, on average; lowest batch {number_text(lowest, 'fraction')}",
        )
    )
    lag_max = max((value for value in run.column("policy_lag_max") if value is not None), default=None)
    tiles.append(
        (
            "Policy lag",
            number_text(_mean(run.column("policy_lag_mean"))),
            "",
            f"versions, on average: {number_text(_mean(run.column('lag_in_flight')))} in flight, "
            f"{number_text(_mean(run.column('lag_in_queue')))} in queue; largest {number_text(lag_max)}",
        )
    )
    tiles.append(
        (
            "Rollout",
            f"{number_text(_mean(run.column('rollout_tokens_per_s')))}",
            "",
            f"tokens per second, on average; the learner waited {number_text(_idle_share(run), 'fraction')} of its time",
        )
    )
    seconds = _mean(run.column("step_s"))
    trained = _last(run.column("trajectories_total"))
    tiles.append(
        (
            "Wall time",
            duration_text(_last(run.column("wall_s"))),
            "",
            f"{run.updates[-1]:,} updates of {duration_text(seconds)}; {number_text(trained, 'count')} trajectories, "
            f"{number_text(_last(run.column('dropped_total')), 'count')} dropped",
        )
    )
    return tiles


def _tile(name: str, value: str, start: str, more: str) -> Html:
    begin = tag("span", start, " → ", class_="from") if start else None
    return tag(
        "div",
        tag("div", name, class_="name"),
        tag("div", begin, value, class_="value"),
        tag("div", more, class_="more"),
        class_="tile",
    )


def _run_notes(run: RunRecord) -> list[str]:
    notes = []
    steps = run.number("warm_start.steps")
    if steps:
        share = run.number("warm_start.correct_fraction")
        right = f", {number_text(share, 'fraction')} of them right," if share is not None else ""
        notes.append(
            f"Warm start: the model saw {steps:,.0f} supervised steps of demonstrations{right} before the first update. "
            "That is not part of the method; the evaluation at update 0 shows what it gave."
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
    items = [tag("li", tag("strong", f"{name}: ") if name else None, note) for name, note in notes]
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
    if accuracy is None or not tasks or not samples or not 0 <= accuracy <= 1 or tasks < 0 or samples < 0:
        return "-"
    return number_text(math.sqrt(accuracy * (1 - accuracy) / (tasks * samples)), "fraction")


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
    score = example.get("score")
    mark = None
    if isinstance(score, (int, float)) and not isinstance(score, bool):
        mark = tag("span", f"score {score:g}", class_="right" if score >= 1 else "wrong")
    texts = [
        (name, str(example[name])[:2000])
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
                ", ".join(f"{key} {value_text(value)}" for key, value in list(versions.items())[:40]),
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
        [_chart_section(title, charts, names) for title, charts in _charts(runs, names)],
        _not_measured(runs),
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
        begin, end = _ends(run.column("reward_mean"), _end_length(run))
        cells = [
            run.text("recipe") or "-",
            number_text(run.updates[-1], "count"),
            _from_to(accuracies[0], accuracies[-1], "fraction") if accuracies else "-",
            _from_to(begin, end),
            number_text(_mean(run.column("acceptance_rate")), "fraction"),
            number_text(_mean(run.column("policy_lag_mean"))),
            number_text(_mean(run.column("rollout_tokens_per_s"))),
            number_text(_idle_share(run), "fraction"),
            duration_text(_last(run.column("wall_s"))),
        ]
        swatch = tag("span", class_=f"swatch c{_colour(index)}")
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
                    f"{package} version": value_text(version)
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


# -- charts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chart:
    title: str
    what: str
    picture: Html
    last: str = ""
    """The newest value, where a single number sums the chart up."""
    legend: tuple[tuple[int, str], ...] = ()


def _chart_section(title: str, charts: Sequence[_Chart | None], names: Sequence[str] = ()) -> Html | None:
    figures = [_figure(chart) for chart in charts if chart is not None]
    if not figures:
        return None
    keys = _keys([(_colour(index), name) for index, name in enumerate(names)]) if names else None
    return joined(tag("h2", title), keys, tag("div", figures, class_="charts"))


def _keys(legend: Sequence[tuple[int, str]]) -> Html:
    keys = [
        tag("span", tag("i", class_=f"c{colour}"), tag("span", name), class_="key") for colour, name in legend
    ]
    return tag("div", keys, class_="legend")


def _figure(chart: _Chart) -> Html:
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("h3", chart.title),
            tag("span", chart.last, class_="last") if chart.last else None,
            tag("span", chart.what, class_="what"),
            _keys(chart.legend) if chart.legend else None,
        ),
        chart.picture,
    )


Charts = list[_Chart | None]


def _charts(runs: Sequence[RunRecord], names: Sequence[str]) -> list[tuple[str, Charts]]:
    """The sections of charts, the same for one run and for several."""
    draw = _Drawing(runs, names)
    several = len(runs) > 1
    delta = draw.shared_setting("objective.delta")
    clip = draw.shared_setting("optim.max_grad_norm")
    bound = draw.shared_setting("rollout.max_policy_lag")
    learning: Charts = [
        draw.accuracy(),
        draw.accuracy(by_time=True) if several else None,
        draw.metric("reward_mean", "Training reward", "Mean reward of each batch, on training prompts."),
        draw.metric(
            "entropy_mean", "Entropy", "Of the next-token distribution, over policy tokens; in nats."
        ),
        draw.metric(
            "response_tokens_mean",
            "Response length",
            "Policy tokens in a trajectory, over all its turns.",
            low=0,
        ),
        draw.metric("truncated_fraction", "Truncated", "Trajectories that ended at a token limit.", low=0),
    ]
    trust: Charts = [
        draw.metric(
            "acceptance_rate",
            "Admitted",
            "Trajectories that the trust region lets into the gradient.",
            high=1,
        ),
        draw.drift(delta),
        draw.metric(
            "ratio_max",
            "Largest ratio",
            "Of one token in admitted trajectories; the gate does not bound it.",
            log=True,
        ),
        draw.metric(
            "top_token_share",
            "Largest token share",
            "Of one token in the batch's absolute loss weight.",
            low=0,
        ),
    ]
    speed: Charts = [
        draw.lag(bound),
        draw.metric(
            "rollout_tokens_per_s",
            "Rollout speed",
            "Policy tokens sampled per second, all workers together.",
            low=0,
        ),
        draw.derived(
            _idle_shares,
            "Learner idle",
            "Share of each step in which the learner waited for trajectories.",
            unit="fraction",
            low=0,
        ),
        draw.metric("step_s", "Time of a step", "Seconds from update to update, waiting included.", low=0),
    ]
    trust += [
        draw.metric(
            "grad_norm", "Gradient norm", "Before clipping.", guides=_guide(clip, "clipped above"), low=0
        ),
        draw.metric("lr", "Learning rate", "Of each update.", low=0),
    ]
    extra = dict.fromkeys(name for run in runs for name in run.environment_metrics)
    environment: Charts = [
        draw.metric(
            name, name.replace("_", " ").capitalize()[:80], f"Reported by the environment as {name[:80]}."
        )
        for name in list(extra)[:40]
        if not name.startswith("dropped_")
    ]
    if any(_last(run.column("dropped_total")) for run in runs):
        speed.append(
            draw.metric("dropped_total", "Dropped", "Trajectories that ended untrained, in total.", low=0)
        )
    return [
        ("Learning", [*learning, *environment]),
        ("Trust region and step", trust),
        ("Lag and throughput", speed),
    ]


class _Drawing:
    """Draws each kind of chart for the runs of the page."""

    def __init__(self, runs: Sequence[RunRecord], names: Sequence[str]) -> None:
        self._runs, self._names = runs, names
        self._units = {metric.name: metric.unit for metric in METRICS}

    @property
    def _one(self) -> RunRecord | None:
        return self._runs[0] if len(self._runs) == 1 else None

    def shared_setting(self, name: str) -> float | None:
        """The setting's value if all runs that are shown have the same."""
        values = {run.number(name) for run in self._runs}
        return values.pop() if len(values) == 1 else None

    def metric(self, name: str, title: str, what: str, **options: Any) -> _Chart | None:
        return self.derived(
            lambda run: run.column(name),
            title,
            what,
            unit=self._units.get(name, _unit_by_name(name)),
            **options,
        )

    def derived(
        self,
        column: Callable[[RunRecord], list[float | None]],
        title: str,
        what: str,
        *,
        unit: str = "",
        **options: Any,
    ) -> _Chart | None:
        series = []
        for index, (run, name) in enumerate(zip(self._runs, self._names, strict=True)):
            values = column(run)
            if any(value is not None for value in values):
                label = title.lower() if self._one else name
                series.append(Series(label, run.updates, values, _colour(index)))
        if not series:
            return None
        last = number_text(_ends(column(self._one), _end_length(self._one))[1], unit) if self._one else ""
        return _Chart(
            title,
            what,
            line_chart(title, series, unit=unit, faint=self._one is not None, **options),
            last,
            self._legend(series),
        )

    def accuracy(self, *, by_time: bool = False) -> _Chart | None:
        series, guides = [], []
        longest = max((run.column("wall_s")[-1] or 0.0 for run in self._runs), default=0.0)
        unit_s, unit_name = _time_axis(longest)
        for index, (run, name) in enumerate(zip(self._runs, self._names, strict=True)):
            if not run.evaluations:
                continue
            measured = [line for line in run.evaluations if not by_time or line.get("wall_s") is not None]
            xs = [line["wall_s"] / unit_s if by_time else float(line["update"]) for line in measured]
            sampled = [line.get("sampled_accuracy") for line in measured]
            series.append(Series("sampled" if self._one else name, xs, sampled, _colour(index), dots=True))
            if self._one:
                greedy = [line.get("greedy_accuracy") for line in measured]
                if any(value is not None for value in greedy):
                    series.append(Series("greedy", xs, greedy, 2, dots=True))
                guides += _guide(measured[-1].get("constant_answer_baseline"), "best constant answer")
                start = sampled[0] if len(sampled) > 1 else None
                guides += _guide(start, "before the first update" if xs[0] == 0 else "first evaluation")
        if not series:
            return None
        last = number_text(self._one.evaluations[-1].get("sampled_accuracy"), "fraction") if self._one else ""
        title = "Held-out accuracy by time" if by_time else "Held-out accuracy"
        what = f"Against {unit_name} of wall time." if by_time else "Exact answers on held-out tasks."
        if not self._one and not by_time:
            what = "Exact answers on held-out tasks, sampled."
        picture = line_chart(
            title,
            series,
            guides=guides,
            unit="fraction",
            low=0,
            high=1,
            x_name=unit_name if by_time else "update",
        )
        return _Chart(title, what, picture, last, self._legend(series))

    def drift(self, delta: float | None) -> _Chart | None:
        series = []
        for index, (run, name) in enumerate(zip(self._runs, self._names, strict=True)):
            if self._one:
                series.append(Series("mean", run.updates, run.column("sequence_kl_mean"), 1))
                series.append(Series("largest trajectory", run.updates, run.column("sequence_kl_max"), 2))
            else:
                series.append(Series(name, run.updates, run.column("sequence_kl_mean"), _colour(index)))
        series = [each for each in series if any(value is not None for value in each.y)]
        if not series:
            return None
        what = "Mean Bernoulli KL of behaviour policy and learner per token, log scale."
        picture = line_chart(
            "Drift", series, guides=_guide(delta, "delta"), log=True, faint=self._one is not None
        )
        last = (
            number_text(_ends(self._one.column("sequence_kl_mean"), _end_length(self._one))[1])
            if self._one
            else ""
        )
        return _Chart("Drift" if self._one else "Mean drift", what, picture, last, self._legend(series))

    def lag(self, bound: float | None) -> _Chart | None:
        run = self._one
        if run is None:
            return self.metric(
                "policy_lag_mean",
                "Policy lag",
                "Versions between sampling and training a token, mean.",
                low=0,
            )
        layers = [
            Series("in flight", run.updates, run.column("lag_in_flight"), 1),
            Series("in queue", run.updates, run.column("lag_in_queue"), 5),
        ]
        if not all(any(value is not None for value in layer.y) for layer in layers):
            return self.metric(
                "policy_lag_mean",
                "Policy lag",
                "Versions between sampling and training a token, mean.",
                low=0,
            )
        what = "Versions between sampling and training a token, mean over tokens."
        last = number_text(_ends(run.column("policy_lag_mean"), _end_length(run))[1])
        picture = stacked_chart("Policy lag", layers, guides=_guide(bound, "bound for every token"))
        return _Chart("Policy lag", what, picture, last, self._legend(layers))

    def _legend(self, series: Sequence[Series]) -> tuple[tuple[int, str], ...]:
        """Of one run's curves; several runs have one legend for all charts of a section."""
        return tuple((each.colour, each.name) for each in series) if self._one and len(series) > 1 else ()


def _not_measured(runs: Sequence[RunRecord]) -> Html | None:
    names = [metric.name for metric in METRICS if all(_mean(run.column(metric.name)) is None for run in runs)]
    return tag("p", "Not measured: ", ", ".join(names), ".", class_="soft") if names else None


def _guide(value: float | None, name: str) -> list[Guide]:
    return [] if value is None else [Guide(value, f"{name} {value:g}" if name == "delta" else name)]


def _colour(index: int) -> int:
    return index % _COLOURS + 1


def _time_axis(longest_s: float) -> tuple[float, str]:
    if longest_s > 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if longest_s > 300 else (1.0, "seconds")


def _unit_by_name(name: str) -> str:
    return "fraction" if name.endswith(("_fraction", "_rate", "_share", "_accuracy")) else ""


# -- numbers ---------------------------------------------------------------------------------------------------


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _end_length(run: RunRecord) -> int:
    return max(1, round(_ENDS * len(run.metrics)))


def _ends(values: Sequence[float | None], count: int) -> tuple[float | None, float | None]:
    """Means of the first and of the last `count` values."""
    return _mean(values[:count]), _mean(values[-count:])


def _idle_shares(run: RunRecord) -> list[float | None]:
    pairs = zip(run.column("learner_idle_s"), run.column("step_s"), strict=True)
    return [min(1.0, idle / step) if idle is not None and step else None for idle, step in pairs]


def _idle_share(run: RunRecord) -> float | None:
    """Waiting time over step time, of the whole run."""
    pairs = zip(run.column("learner_idle_s"), run.column("step_s"), strict=True)
    known = [(idle, step) for idle, step in pairs if idle is not None and step]
    total = math.fsum(step for _, step in known)
    return math.fsum(idle for idle, _ in known) / total if total > 0 else None
