"""Answers that are plain numbers, compared exactly: no tolerance ever makes 0 equal to 1e-7."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MIN_SIGNIFICANT_DIGITS = 6
"""A decimal stands for another number that it is the rounding of only from this many digits on."""

_MAX_EXPONENT = 400
_MAX_CHARS = 400

_UNSIGNED = r"\d+(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)(?:
        (?P<mantissa>{_UNSIGNED})(?:[eE](?P<e>[+-]?\d+))
      | (?:(?P<coefficient>{_UNSIGNED})\s*(?:\\times|\\cdot|\*|x)\s*)?10\^\{{(?P<power>[+-]?\d+)\}}
      | (?:(?P<whole>\d+)\s*)?\\frac\{{(?P<over>-?\d+)\}}\{{(?P<under>\d+)\}}
      | (?:(?P<whole2>\d+)[ ])?(?P<over2>\d+)/(?P<under2>\d+)
      | (?P<start>\d*\.\d*)\\overline\{{(?P<period>\d+)\}}
      | (?P<decimal>{_UNSIGNED})
    )(?P<percent>\\%)?""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class ExactNumber:
    """A rational number as it was written; `tolerance` is half a unit of the last place of a long decimal, else 0."""

    value: Fraction
    tolerance: Fraction = Fraction(0)
    percent: bool = False

    def share(self) -> ExactNumber:
        """The same number without a percent sign."""
        return ExactNumber(self.value / 100, self.tolerance / 100) if self.percent else self


def parse_number(text: str) -> ExactNumber | None:
    """The number that a cleaned answer spells, if it is one: 1.5, 1e-3, 3/4, 1 1/2, 25%, 6.02 times a power of ten."""
    text = text.strip("{} ") if text.count("{") == text.count("}") == 1 and text[:1] == "{" else text
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None:
        return None
    part = match.groupdict()
    sign = -1 if part["sign"] == "-" else 1
    percent = part["percent"] is not None
    if part["decimal"] is not None:
        before, _, behind = part["decimal"].partition(".")
        is_long = behind and len((before + behind).lstrip("0")) >= MIN_SIGNIFICANT_DIGITS
        tolerance = Fraction(1, 2 * 10 ** len(behind)) if is_long else Fraction(0)
        return ExactNumber(sign * Fraction(part["decimal"].rstrip(".")), tolerance, percent)
    if part["period"] is not None:
        _, _, fixed = part["start"].partition(".")
        repeating = Fraction(int(part["period"]), (10 ** len(part["period"]) - 1) * 10 ** len(fixed))
        return ExactNumber(sign * (Fraction(f"0{part['start']}0") + repeating), percent=percent)
    if part["over"] is not None or part["over2"] is not None:
        over, under = int(part["over"] or part["over2"]), int(part["under"] or part["under2"])
        whole = part["whole"] or part["whole2"]
        if under == 0 or (whole is not None and (over < 0 or over >= under)):
            return None
        return ExactNumber(sign * (int(whole or 0) + Fraction(over, under)), percent=percent)
    exponent = int((part["e"] or part["power"])[:9])
    if abs(exponent) > _MAX_EXPONENT:
        return None
    mantissa = Fraction((part["mantissa"] or part["coefficient"] or "1").rstrip("."))
    return ExactNumber(sign * mantissa * Fraction(10) ** exponent, percent=percent)


def equal_numbers(a: ExactNumber, b: ExactNumber) -> bool:
    """Equal, or one is the rounding of the other. 25% equals .25, and also 25: a percent sign is like a unit."""
    if _within(a, b):
        return True
    return a.percent != b.percent and _within(a.share(), b.share())


def _within(a: ExactNumber, b: ExactNumber) -> bool:
    return abs(a.value - b.value) <= max(a.tolerance, b.tolerance)
