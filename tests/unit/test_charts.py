"""The small parts of charts: ticks, numbers, gathering of long curves, escaping."""

from __future__ import annotations

import doctest
import importlib
import json
import re

import pytest

from flashreinforce_molt.telemetry.formatting import duration_text, number_text
from flashreinforce_molt.telemetry.markup import escaped, joined, tag
from flashreinforce_molt.telemetry.svg import (
    Guide,
    Series,
    line_chart,
    linear_ticks,
    log_ticks,
    stacked_chart,
    tick_text,
)


def test_ticks_are_round_and_inside() -> None:
    assert linear_ticks(0, 500) == [0, 200, 400]
    assert linear_ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1]
    assert linear_ticks(-3, 7) == [-2.5, 0, 2.5, 5]
    assert log_ticks(0.0003, 2) == pytest.approx([1e-3, 1e-2, 0.1, 1])
    assert log_ticks(1.5, 6) == [2, 5]


def test_numbers_read_well() -> None:
    values = [0, 1, 0.5, 2.345, 1234.5, 0.00123, 3e-3, 2.5e8, None, float("inf")]
    assert [number_text(value) for value in values] == [
        "0", "1", "0.500", "2.35", "1,234", "1.23e-3", "3e-3", "2.50e8", "-", "-",
    ]  # fmt: skip
    assert number_text(0.987, "fraction") == "98.7%"
    assert number_text(12345, "count") == "12,345"
    assert [tick_text(value) for value in (0, 1e-4, 0.25, 1500, 2e6, -3e9, 1e15)] == [
        "0", "1e-4", "0.25", "1.5k", "2M", "-3G", "1e15",
    ]  # fmt: skip
    assert [duration_text(value) for value in (0.05, 9.96, 59.7, 3599.6, 86400 * 3, None, -1, 1e300)] == [
        "0.1 s", "10.0 s", "1 min 00 s", "1 h 00 min", "3 d 00 h", "-", "-", "-",
    ]  # fmt: skip


def curves(svg: str, kind: str = "") -> list[str]:
    return re.findall(rf'<path d="([^"]*)" class="line {kind}c', svg)


def test_a_hole_interrupts_the_curve() -> None:
    svg = line_chart("x", [Series("a", [1, 2, 3, 4], [1.0, None, 2.0, 3.0])])
    assert curves(svg)[0].count("M") == 2
    assert curves(svg)[0].count("L") == 1


def test_a_long_curve_is_gathered_but_keeps_its_extremes() -> None:
    values = [0.0] * 10_000
    values[7777] = 50.0
    svg = line_chart("x", [Series("a", list(range(10_000)), values)], low=0, high=50)
    (raw,) = curves(svg, "faint ")
    assert raw.count("L") < 300
    assert min(float(y) for y in re.findall(r" ([0-9.]+)", raw)) == pytest.approx(10, abs=0.1)
    assert curves(line_chart("x", [Series("a", [1, 2], [1.0, 2.0])]), "faint ") == []


def test_values_that_a_log_scale_cannot_show_do_not_break_it() -> None:
    svg = line_chart(
        "x", [Series("a", [1, 2, 3], [0.0, 1e-3, 1e-4])], guides=[Guide(3e-3, "delta")], log=True
    )
    assert "delta" in svg
    assert "nan" not in svg
    assert "1e-4" in svg
    assert "<path" in line_chart("x", [Series("a", [1, 2], [0.0, 0.0])], log=True)


def test_layers_are_stacked_where_all_were_measured() -> None:
    svg = stacked_chart(
        "lag", [Series("a", [1, 2, 3], [1.0, 1.0, None], 1), Series("b", [1, 2, 3], [2.0, 1.0, 5.0], 5)]
    )
    first, second = re.findall(r'points="([^"]*)"', svg)
    assert len(first.split()) == 4  # two updates, there and back
    assert first.split()[:2] == second.split()[:1:-1]  # the top of one layer is the foot of the next


def test_an_empty_chart_is_still_a_picture() -> None:
    assert "<svg" in line_chart("x", [])
    assert "<svg" in stacked_chart("x", [Series("a", [1], [None])])


def test_what_the_pointer_shows_is_data_and_escaped() -> None:
    svg = line_chart('<b>"', [Series("</svg><script>", [1, 2], [0.5, None])], unit="fraction")
    assert "<script>" not in svg
    assert "<b>" not in svg
    raw = re.search(r'data-chart="([^"]*)"', svg)
    assert raw is not None
    chart = json.loads(raw.group(1).replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">"))
    assert chart["curves"] == [{"n": "</svg><script>", "c": 1, "x": [1.0], "y": [0.5]}]


def test_only_what_was_built_here_is_markup() -> None:
    assert (
        tag("p", "<b>", tag("b", "x"), None, ["&"], title='"')
        == '<p title="&quot;">&lt;b&gt;<b>x</b>&amp;</p>'
    )
    assert joined("<", tag("br")) == "&lt;<br>"
    assert escaped("a\x00b\x1b\ud800\u202ec") == "a�b���c"
    assert tag("p", "größe ≥ 1, 日本") == "<p>größe ≥ 1, 日本</p>"


@pytest.mark.parametrize("name", ["formatting", "live", "markup", "redaction", "svg"])
def test_examples_in_docstrings_are_true(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"flashreinforce_molt.telemetry.{name}"))
    assert tried > 0
    assert failed == 0
