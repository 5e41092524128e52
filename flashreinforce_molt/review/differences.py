"""Two reviews side by side."""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from typing import Any

from flashreinforce_molt.config.experiment import Setting
from flashreinforce_molt.config.typed import show
from flashreinforce_molt.review.as_data import as_data
from flashreinforce_molt.review.document import Review
from flashreinforce_molt.review.layout import Line, columns, counted, heading


def label(review: Review) -> str:
    """What a side is called: recipe, variants and changes of the command line."""
    experiment = review.experiment
    changed = [setting for setting in experiment.settings.values() if setting.layer == "--set"]
    words = [
        experiment.recipe,
        *experiment.variants,
        *(f"{each.name}={show(each.value)}" for each in changed),
    ]
    return " + ".join(words)


def differences(left: Review, right: Review) -> dict[str, tuple[Any, Any]]:
    """Settings with different values, by name in the order of the schema."""
    one, other = left.experiment.settings, right.experiment.settings
    return {
        name: (one[name].value, other[name].value) for name in one if one[name].value != other[name].value
    }


def difference_page(left: Review, right: Review, width: int) -> list[Line]:
    """Every setting that differs, with both values and where they came from."""
    found = differences(left, right)
    lines: list[Line] = [[(f"{label(left)}  against  {label(right)}", "title")]]
    if not found:
        return [*lines, [("  the two experiments are the same", "ok")]]
    side = max(16, (width - 40) // 2)
    lines += heading(f"different: {counted(len(found), 'setting')}")
    for name in found:
        one, other = left.experiment.settings[name], right.experiment.settings[name]
        lines += columns(
            [[(f"  {name}", "value"), (show(one.value), "changed"), (show(other.value), "changed")]],
            (34, side),
            width,
        )
        pairs = zip_longest(_origin(one, side), _origin(other, side), fillvalue="")
        lines += columns(
            [[("", ""), (left_part, "source"), (right_part, "source")] for left_part, right_part in pairs],
            (34, side),
            width,
        )
    lines += heading("plan")
    lines += columns(
        [
            [
                ("  policy lag", ""),
                (f"{left.lag.low:g} to {left.lag.high:g}", ""),
                (f"{right.lag.low:g} to {right.lag.high:g}", ""),
            ]
        ],
        (34, side),
        width,
    )
    updates = [f"{review.experiment.config.train.updates:,}" for review in (left, right)]
    lines += columns([[("  updates", ""), (updates[0], ""), (updates[1], "")]], (34, side), width)
    return lines


def difference_data(left: Review, right: Review) -> dict[str, Any]:
    """The same as plain data."""
    found = differences(left, right)
    return {
        "left": as_data(left),
        "right": as_data(right),
        "differences": {
            name: {
                side: {"value": value, "source": review.experiment.settings[name].source}
                for side, value, review in (("left", one, left), ("right", other, right))
            }
            for name, (one, other) in found.items()
        },
    }


def _origin(setting: Setting, width: int) -> list[str]:
    text = setting.layer if setting.source == setting.layer else f"{setting.layer}: {setting.source}"
    return textwrap.wrap(text, width, break_on_hyphens=False)
