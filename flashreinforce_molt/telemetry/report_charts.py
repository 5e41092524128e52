"""The charts of a report, the same for one run and for several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashreinforce_molt.telemetry.formatting import number_text
from flashreinforce_molt.telemetry.markup import Html, joined, tag
from flashreinforce_molt.telemetry.metric_table import METRICS
from flashreinforce_molt.telemetry.redaction import redact
from flashreinforce_molt.telemetry.run_record import RunRecord
from flashreinforce_molt.telemetry.svg import Guide, Series, line_chart, stacked_chart

_COLOURS = 8
_MOST_ENVIRONMENT_CHARTS = 40
_UNITS = {metric.name: metric.unit for metric in METRICS}

Column = Callable[[RunRecord], Sequence[float | None]]


@dataclass(frozen=True)
class _Curve:
    """What a chart of one number per update shows."""

    title: str
    what: str
    column: Column
    unit: str = ""
    low: float | None = None
    high: float | None = None
    log: bool = False
    limit: tuple[str, str] | None = None
    """Setting that is drawn as a horizontal line, and the name of that line."""


def _metric(
    name: str,
    title: str,
    what: str,
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    limit: tuple[str, str] | None = None,
) -> _Curve:
    unit = _UNITS.get(name, "fraction" if name.endswith(("_fraction", "_rate", "_share")) else "")
    return _Curve(title, what, lambda run: run.column(name), unit, low, high, log, limit)


_REWARD = _metric("reward_mean", "Training reward", "Mean reward of each batch, on training prompts.")
_RESPONSES = (
    _metric("entropy_mean", "Entropy", "Of the next-token distribution, over policy tokens; in nats.", low=0),
    _metric(
        "response_tokens_mean", "Response length", "Policy tokens of a trajectory, over all its turns.", low=0
    ),
    _metric("truncated_fraction", "Truncated", "Trajectories that ended at a token limit.", low=0),
)
_ADMITTED = _metric(
    "acceptance_rate", "Admitted", "Trajectories that the trust region lets into the gradient.", high=1
)
_STEP = (
    _metric(
        "ratio_max", "Largest ratio", "Of one token in admitted trajectories; no gate bounds it.", log=True
    ),
    _metric(
        "top_token_share", "Largest token share", "Of one token in the batch's absolute loss weight.", low=0
    ),
    _metric(
        "grad_norm",
        "Gradient norm",
        "Before clipping.",
        low=0,
        limit=("optim.max_grad_norm", "clipped above"),
    ),
    _metric("lr", "Learning rate", "Of each update.", low=0),
)
_LAG = _metric(
    "policy_lag_mean", "Policy lag", "Versions between sampling and training a token, mean.", low=0
)
_SPEED = (
    _metric(
        "rollout_tokens_per_s",
        "Rollout speed",
        "Policy tokens sampled per second, all workers together.",
        low=0,
    ),
    _Curve(
        "Learner idle",
        "Share of each step in which the learner waited for trajectories.",
        RunRecord.idle_shares,
        unit="fraction",
        low=0,
    ),
    _metric("step_s", "Time of a step", "Seconds from update to update, waiting included.", low=0),
)
_DROPPED = _metric("dropped_total", "Dropped", "Trajectories that ended untrained, in total.", low=0)


def chart_sections(runs: Sequence[RunRecord], names: Sequence[str]) -> Html:
    """All charts under their headings, and what could not be drawn because nobody measured it."""
    draw = _Drawing(runs, names)
    environment = dict.fromkeys(name for run in runs for name in run.environment_metrics)
    learning = [
        draw.accuracy(),
        draw.accuracy_by_time(),
        *map(draw.curve, (_REWARD, *_RESPONSES)),
        *(draw.curve(_from_environment(name)) for name in list(environment)[:_MOST_ENVIRONMENT_CHARTS]),
    ]
    trust = [draw.curve(_ADMITTED), draw.drift(), *map(draw.curve, _STEP)]
    speed = [draw.lag(), *map(draw.curve, _SPEED)]
    if any(run.last("dropped_total") for run in runs):
        speed.append(draw.curve(_DROPPED))
    return joined(
        draw.section("Learning", learning),
        draw.section("Trust region and step", trust),
        draw.section("Lag and throughput", speed),
        _not_measured(runs),
    )


def colour(index: int) -> int:
    """Palette slot of a run, by its place on the page."""
    return index % _COLOURS + 1


def _from_environment(name: str) -> _Curve:
    name = redact(name)[:80]
    return _metric(name, name.replace("_", " ").capitalize(), f"Reported by the run as {name}.")


def _not_measured(runs: Sequence[RunRecord]) -> Html | None:
    names = [metric.name for metric in METRICS if all(run.mean(metric.name) is None for run in runs)]
    return tag("p", "Not measured: ", ", ".join(names), ".", class_="soft") if names else None


class _Drawing:
    """Draws each kind of chart for the runs of the page; a chart without a single value is None."""

    def __init__(self, runs: Sequence[RunRecord], names: Sequence[str]) -> None:
        self._runs = runs
        self._named = list(zip(runs, names, strict=True))
        self._only = runs[0] if len(runs) == 1 else None

    def section(self, title: str, figures: Sequence[Html | None]) -> Html | None:
        """Charts under a heading; several runs share one legend."""
        shown = [figure for figure in figures if figure is not None]
        if not shown:
            return None
        legend = (
            None if self._only else _legend([(colour(i), name) for i, (_, name) in enumerate(self._named)])
        )
        return joined(tag("h2", title), legend, tag("div", shown, class_="charts"))

    def curve(self, curve: _Curve) -> Html | None:
        series = self._one_for_each(curve.column, curve.title.lower())
        if not series:
            return None
        picture = line_chart(
            curve.title,
            series,
            guides=self._limit(*curve.limit) if curve.limit else (),
            unit=curve.unit,
            low=curve.low,
            high=curve.high,
            log=curve.log,
            faint=self._only is not None,
        )
        return _figure(curve.title, curve.what, picture, self._newest(curve.column, curve.unit))

    def accuracy(self) -> Html | None:
        what = "Exact answers on held-out tasks, sampled."
        if self._only is None:
            return self._accuracies(lambda line: float(line["update"]), "Held-out accuracy", what, "update")
        evaluations = self._only.evaluations
        if not evaluations:
            return None
        first, last = evaluations[0], evaluations[-1]
        updates = [line["update"] for line in evaluations]
        series = [
            Series(name, updates, [line.get(f"{name}_accuracy") for line in evaluations], slot, dots=True)
            for slot, name in enumerate(("sampled", "greedy"), start=1)
        ]
        guides = _guide(last.get("constant_answer_baseline"), "best constant answer")
        if len(evaluations) > 1:
            start = "before the first update" if first["update"] == 0 else "first evaluation"
            guides += _guide(first.get("sampled_accuracy"), start)
        series = [each for each in series if any(y is not None for y in each.y)]
        picture = line_chart("Held-out accuracy", series, guides=guides, unit="fraction", low=0, high=1)
        newest = number_text(last.get("sampled_accuracy"), "fraction")
        return _figure("Held-out accuracy", "Exact answers on held-out tasks.", picture, newest, series)

    def accuracy_by_time(self) -> Html | None:
        """For several runs: who is faster on the clock."""
        if self._only is not None:
            return None
        unit_s, unit_name = _time_axis(max(run.last("wall_s") or 0.0 for run in self._runs))
        what = f"Against {unit_name} of wall time."
        return self._accuracies(
            lambda line: line["wall_s"] / unit_s, "Held-out accuracy by time", what, unit_name
        )

    def _accuracies(self, place: Callable[[dict], float], title: str, what: str, x_name: str) -> Html | None:
        series = []
        for index, (run, name) in enumerate(self._named):
            lines = [line for line in run.evaluations if line.get("wall_s") is not None]
            if lines:
                accuracies = [line.get("sampled_accuracy") for line in lines]
                series.append(
                    Series(name, [place(line) for line in lines], accuracies, colour(index), dots=True)
                )
        if not series:
            return None
        return _figure(title, what, line_chart(title, series, unit="fraction", low=0, high=1, x_name=x_name))

    def drift(self) -> Html | None:
        what = "Mean Bernoulli KL of behaviour policy and learner per token, log scale."
        guides = self._limit("objective.delta", "delta")
        if self._only is None:
            series = self._one_for_each(lambda run: run.column("sequence_kl_mean"), "")
            return _figure("Mean drift", what, _drift_chart(series, guides, faint=False)) if series else None
        run = self._only
        series = [
            Series("mean", run.updates, run.column("sequence_kl_mean"), 1),
            Series("largest trajectory", run.updates, run.column("sequence_kl_max"), 2),
        ]
        series = [each for each in series if any(y is not None for y in each.y)]
        if not series:
            return None
        newest = self._newest(lambda run: run.column("sequence_kl_mean"), "")
        return _figure("Drift", what, _drift_chart(series, guides, faint=True), newest, series)

    def lag(self) -> Html | None:
        """One run: stacked by cause; several: the sum."""
        run = self._only
        if run is None or run.mean("lag_in_flight") is None or run.mean("lag_in_queue") is None:
            return self.curve(_LAG)
        layers = [
            Series("in flight", run.updates, run.column("lag_in_flight"), 1),
            Series("in queue", run.updates, run.column("lag_in_queue"), 5),
        ]
        picture = stacked_chart(
            _LAG.title, layers, guides=self._limit("rollout.max_policy_lag", "bound of every token")
        )
        return _figure(_LAG.title, _LAG.what, picture, self._newest(_LAG.column, ""), layers)

    def _one_for_each(self, column: Column, name_of_one: str) -> list[Series]:
        """One series for each run that has values; only a page of one run calls it by the metric's name."""
        series = []
        for index, (run, name) in enumerate(self._named):
            values = column(run)
            if any(value is not None for value in values):
                series.append(Series(name_of_one if self._only else name, run.updates, values, colour(index)))
        return series

    def _limit(self, setting: str, name: str) -> list[Guide]:
        """The setting's value as a line, if all runs of the page have the same."""
        values = {run.number(setting) for run in self._runs}
        value = values.pop() if len(values) == 1 else None
        return _guide(value, f"{name} {number_text(value)}")

    def _newest(self, column: Column, unit: str) -> str:
        return number_text(self._only.first_and_last(column(self._only))[1], unit) if self._only else ""


def _drift_chart(series: Sequence[Series], guides: Sequence[Guide], *, faint: bool) -> Html:
    return line_chart("Drift", series, guides=guides, log=True, faint=faint)


def _guide(value: float | None, name: str) -> list[Guide]:
    return [] if value is None else [Guide(value, name)]


def _time_axis(longest_s: float) -> tuple[float, str]:
    if longest_s > 3 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if longest_s > 300 else (1.0, "seconds")


def _figure(title: str, what: str, picture: Html, newest: str = "", curves: Sequence[Series] = ()) -> Html:
    """A chart with its caption; `newest` is the value that sums it up, `curves` are those that need a legend."""
    legend = _legend([(each.colour, each.name) for each in curves]) if len(curves) > 1 else None
    caption = tag(
        "figcaption",
        tag("h3", title),
        tag("span", newest, class_="last") if newest else None,
        tag("span", what, class_="what"),
        legend,
    )
    return tag("figure", caption, picture)


def _legend(entries: Sequence[tuple[int, str]]) -> Html:
    keys = [
        tag("span", tag("i", class_=f"c{slot}"), tag("span", name), class_="key") for slot, name in entries
    ]
    return tag("div", keys, class_="legend")
