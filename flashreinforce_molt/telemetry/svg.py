"""Charts as inline SVG: colours and type come from the page's style sheet, so that they follow light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flashreinforce_molt.telemetry.markup import Html, joined, tag

WIDTH, HEIGHT = 380, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 24
_DRAWN_POINTS = 240
"""Points of a curve that are drawn; longer ones are gathered, with their extremes kept."""
_SMOOTHED_FROM = 30
"""A curve with at least this many points gets a smoothed line over the raw one."""
_LARGEST, _SMALLEST = 1e100, 1e-100
_LOG_DECADES = 6

Values = Sequence[float | None]


@dataclass(frozen=True)
class Series:
    """One curve; `colour` is a slot of the page's palette, from 1. A missing value leaves a hole."""

    name: str
    x: Sequence[float]
    y: Values
    colour: int = 1
    dots: bool = False
    """Mark every point and do not smooth: for sparse series such as evaluations."""


@dataclass(frozen=True)
class Guide:
    """A horizontal line with a name, such as a limit or a baseline."""

    y: float
    name: str


def line_chart(
    label: str,
    series: Sequence[Series],
    *,
    guides: Sequence[Guide] = (),
    unit: str = "",
    log: bool = False,
    low: float | None = None,
    high: float | None = None,
    x_name: str = "update",
    faint: bool = True,
) -> Html:
    """Curves over updates (or another axis).

    `low` and `high` widen the vertical range, `log` asks for a logarithmic one, `faint` shows a long curve's raw
    values behind its smoothed line.
    """
    series = [_drawable(each) for each in series]
    values = [y for each in series for y in each.y if y is not None]
    guides = _drawable_guides(guides)
    positive = [y for y in [*values, *(guide.y for guide in guides)] if y > 0]
    log = log and bool(positive) and any(y > 0 for y in values)
    frame = _Frame(
        _x_range(series),
        _log_range(positive) if log else _linear_range(values, [guide.y for guide in guides], low, high),
        log,
        x_name,
    )
    parts = [_axes(frame, unit)]
    parts += [_guide_line(frame, guide) for guide in guides]
    parts += [_curve(frame, each, faint_too=faint) for each in series]
    parts += [_guide_name(frame, guide) for guide in guides]
    return _svg(label, frame, series, unit, parts)


def stacked_chart(
    label: str, layers: Sequence[Series], *, guides: Sequence[Guide] = (), unit: str = ""
) -> Html:
    """Layers on top of each other, for parts of a sum; all have the same x values."""
    layers = [_gathered(each) for each in _measured_together([_drawable(each) for each in layers])]
    guides = _drawable_guides(guides)
    totals = [0.0] * len(layers[0].x)
    edges: list[list[float]] = [totals]
    for layer in layers:
        totals = [total + max(0.0, y or 0.0) for total, y in zip(totals, layer.y, strict=True)]
        edges.append(totals)
    frame = _Frame(_x_range(layers), _linear_range(totals, [guide.y for guide in guides], 0.0, None))
    parts = [_axes(frame, unit)]
    for layer, below, above in zip(layers, edges, edges[1:], strict=False):
        forth = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(layer.x, above, strict=True)]
        back = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(layer.x, below, strict=True)]
        parts.append(
            tag("polygon", points=" ".join([*forth, *reversed(back)]), class_=f"area c{layer.colour}")
        )
    for guide in guides:
        parts += [_guide_line(frame, guide), _guide_name(frame, guide)]
    return _svg(label, frame, layers, unit, parts)


# -- geometry --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    log: bool = False
    x_name: str = "update"

    def x(self, value: float) -> float:
        low, high = self.x_range
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        if self.log:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _x_range(series: Sequence[Series]) -> tuple[float, float]:
    xs = [x for each in series for x in each.x]
    low, high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    margin = 0.0 if _differ(low, high) else max(0.5, abs(low) / 10)
    return low - margin, high + margin


def _differ(low: float, high: float) -> bool:
    return high - low > 1e-9 * max(abs(low), abs(high))


def _linear_range(
    values: Sequence[float], marks: Sequence[float], low: float | None, high: float | None
) -> tuple[float, float]:
    known = [*values, *marks, *(bound for bound in (low, high) if bound is not None)] or [0.0, 1.0]
    bottom, top = min(known), max(known)
    if not _differ(bottom, top):
        margin = abs(top) / 10 or 0.5
    else:
        margin = 0.06 * (top - bottom)
        if 0 <= bottom < 0.5 * top:
            bottom = low = 0.0  # a range that starts near zero starts at zero
    return (bottom if bottom == low else bottom - margin), (top if top == high else top + margin)


def _log_range(positive: Sequence[float]) -> tuple[float, float]:
    high = max(positive)
    low = max(min(positive), high / 10**_LOG_DECADES)
    if high / low < 10:
        low, high = low / 2, high * 2
    return low / 1.3, high * 1.3


def linear_ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers between `low` and `high`, about as many as wanted.

    >>> linear_ticks(0, 1), linear_ticks(0.13, 0.96)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.25, 0.5, 0.75])
    """
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between `low` and `high`; with fewer than two of them, also 2 and 5 times these."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [10.0**exponent for exponent in exponents]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) < 2:
        inside = [factor * tick for tick in ticks for factor in (1, 2, 5) if low <= factor * tick <= high]
    return inside


def tick_text(value: float, unit: str = "") -> str:
    """A short name of a tick.

    >>> tick_text(0.25, "fraction"), tick_text(4000), tick_text(0.0001), tick_text(2.5)
    ('25%', '4k', '1e-4', '2.5')
    """
    if unit == "fraction":
        return f"{100 * value:.4g}%"
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if limit <= size < 1e12:
            return f"{value / limit:.4g}{suffix}"
    if size and (size < 1e-3 or size >= 1e12):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.4g}"


# -- drawing ---------------------------------------------------------------------------------------------------


def _svg(label: str, frame: _Frame, series: Sequence[Series], unit: str, parts: Iterable[Html]) -> Html:
    return tag(
        "svg",
        *parts,
        tag("line", class_="cursor", y1=_TOP, y2=HEIGHT - _BOTTOM, x1=-9, x2=-9),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=label,
        data_chart=_hover_data(frame, series, unit),
    )


def _hover_data(frame: _Frame, series: Sequence[Series], unit: str) -> str:
    """What the page's few lines of script need to show the values under the pointer."""
    curves = []
    for each in series:
        thin = each if each.dots else _gathered(each)
        points = [(x, y) for x, y in zip(thin.x, thin.y, strict=True) if y is not None]
        curves.append(
            {
                "n": each.name,
                "c": each.colour,
                "x": [float(f"{x:.6g}") for x, _ in points],
                "y": [float(f"{y:.4g}") for _, y in points],
            }
        )
    return json.dumps(
        {
            "name": frame.x_name,
            "unit": unit,
            "left": _LEFT,
            "right": WIDTH - _RIGHT,
            "low": frame.x_range[0],
            "high": frame.x_range[1],
            "curves": curves,
        },
        separators=(",", ":"),
    )


def _axes(frame: _Frame, unit: str) -> Html:
    low, high = frame.y_range
    ticks = log_ticks(low, high) if frame.log else linear_ticks(low, high)
    parts = []
    for value in ticks[-8:]:
        y = f"{frame.y(value):.1f}"
        parts.append(tag("line", class_="grid", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y))
        parts.append(
            tag(
                "text",
                tick_text(value, unit),
                class_="tick",
                x=_LEFT - 6,
                y=y,
                dy="0.32em",
                text_anchor="end",
            )
        )
    bottom = HEIGHT - _BOTTOM
    parts.append(tag("line", class_="axis", x1=_LEFT, x2=WIDTH - _RIGHT, y1=bottom, y2=bottom))
    x_ticks = [
        value for value in linear_ticks(*frame.x_range) if frame.x_name != "update" or value == int(value)
    ]
    for value in x_ticks:
        name = tick_text(value)
        if value == x_ticks[-1]:
            name = f"update {name}" if frame.x_name == "update" else f"{name} {frame.x_name}"
        # About 6 units a character: a name that would leave the picture ends at its edge.
        x, edge = frame.x(value), WIDTH - _RIGHT
        fits = x + 3 * len(name) <= edge + _RIGHT
        parts.append(
            tag(
                "text",
                name,
                class_="tick",
                x=f"{x if fits else edge:.1f}",
                y=bottom + 16,
                text_anchor="middle" if fits else "end",
            )
        )
    return joined(parts)


def _guide_line(frame: _Frame, guide: Guide) -> Html:
    y = f"{frame.y(guide.y):.1f}"
    return tag("line", class_="guide", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y)


def _guide_name(frame: _Frame, guide: Guide) -> Html:
    y = frame.y(guide.y)
    y = y - 4 if y > _TOP + 16 else y + 12
    return tag("text", guide.name, class_="guide-name", x=WIDTH - _RIGHT - 2, y=f"{y:.1f}", text_anchor="end")


def _curve(frame: _Frame, series: Series, *, faint_too: bool) -> Html:
    colour = f"c{series.colour}"
    if series.dots:
        points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
        dots = [
            tag("circle", class_=f"dot {colour}", cx=f"{frame.x(x):.1f}", cy=f"{frame.y(y):.1f}", r=2.6)
            for x, y in points
            if len(points) <= 60
        ]
        return joined(_path(frame, [x for x, _ in points], [y for _, y in points], f"line {colour}"), dots)
    if len(series.x) < _SMOOTHED_FROM:
        return _path(frame, series.x, series.y, f"line {colour}")
    xs, ys = _extremes(series.x, series.y)
    smooth = _gathered(replace(series, y=_smoothed(series.y)))
    return joined(
        _path(frame, xs, ys, f"line faint {colour}") if faint_too else None,
        _path(frame, smooth.x, smooth.y, f"line {colour}"),
    )


def _path(frame: _Frame, xs: Sequence[float], ys: Values, classes: str) -> Html:
    commands = []
    pen_down = False
    for x, y in zip(xs, ys, strict=True):
        if y is None:
            pen_down = False
            continue
        commands.append(f"{'L' if pen_down else 'M'}{frame.x(x):.1f} {frame.y(y):.1f}")
        pen_down = True
    if len(commands) == 1:
        commands.append("h0.1")  # a single point stays visible
    return tag("path", d="".join(commands), class_=classes)


# -- series ----------------------------------------------------------------------------------------------------


def _drawable(series: Series) -> Series:
    """The series without numbers so large or so small that drawing them would leave the range of floats."""
    kept = [index for index, x in enumerate(series.x) if abs(x) < _LARGEST]
    ys = [_drawable_value(series.y[index]) for index in kept]
    return replace(series, x=[series.x[index] for index in kept], y=ys)


def _drawable_guides(guides: Sequence[Guide]) -> list[Guide]:
    return [guide for guide in guides if _SMALLEST < abs(guide.y) < _LARGEST or guide.y == 0]


def _drawable_value(y: float | None) -> float | None:
    if y is None or abs(y) >= _LARGEST:
        return None
    return y if abs(y) > _SMALLEST else 0.0


def _measured_together(layers: Sequence[Series]) -> list[Series]:
    """The layers at the places where each of them was measured."""
    kept = [i for i in range(len(layers[0].x)) if all(layer.y[i] is not None for layer in layers)]
    return [
        Series(layer.name, [layer.x[i] for i in kept], [layer.y[i] for i in kept], layer.colour)
        for layer in layers
    ]


def _smoothed(ys: Values) -> list[float | None]:
    """Centred moving average over about a fortieth of the curve."""
    reach = max(1, len(ys) // 80)
    sums, counts = [0.0], [0]
    for y in ys:
        sums.append(sums[-1] + (y or 0.0))
        counts.append(counts[-1] + (y is not None))
    result: list[float | None] = []
    for index, y in enumerate(ys):
        start, end = max(0, index - reach), min(len(ys), index + reach + 1)
        count = counts[end] - counts[start]
        result.append((sums[end] - sums[start]) / count if y is not None and count else None)
    return result


def _buckets(count: int, wanted: int) -> list[tuple[int, int]]:
    edges = [round(index * count / wanted) for index in range(wanted + 1)]
    return [(a, b) for a, b in pairwise(edges) if b > a]


def _gathered(series: Series) -> Series:
    """The series with at most `_DRAWN_POINTS` points, each the mean of its neighbours."""
    if len(series.x) <= _DRAWN_POINTS:
        return series
    xs, ys = [], []
    for start, end in _buckets(len(series.x), _DRAWN_POINTS):
        known = [y for y in series.y[start:end] if y is not None]
        xs.append(series.x[(start + end - 1) // 2])
        ys.append(sum(known) / len(known) if known else None)
    return replace(series, x=xs, y=ys)


def _extremes(xs: Sequence[float], ys: Values) -> tuple[Sequence[float], Values]:
    """The curve with at most `_DRAWN_POINTS` points: the smallest and the largest of each group, in order."""
    if len(xs) <= _DRAWN_POINTS:
        return xs, ys
    kept: list[int] = []
    for start, end in _buckets(len(xs), _DRAWN_POINTS // 2):
        known = [(y, index) for index, y in enumerate(ys[start:end], start) if y is not None]
        kept += sorted({min(known)[1], max(known)[1]}) if known else [start]
    return [xs[index] for index in kept], [ys[index] for index in kept]
