"""Numbers as people read them, for the live view and the report."""

from __future__ import annotations

import math


def number_text(value: float | None, unit: str = "") -> str:
    """A number with about three significant digits, by its unit; a dash when it was not measured.

    >>> number_text(0.987, "fraction"), number_text(1234.5, "tokens/s"), number_text(0.00012, "nats"), number_text(None)
    ('98.7%', '1,234', '1.20e-4', '-')
    """
    if value is None or not math.isfinite(value):
        return "-"
    if unit == "fraction":
        return f"{100 * value:.1f}%"
    if unit == "count":
        return f"{value:,.0f}"
    size = abs(value)
    if size < 1000 and float(value).is_integer():
        return f"{value:.0f}"
    if size < 1e-2 or size >= 1e7:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.removesuffix('.00')}e{int(exponent)}"
    if size >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(size)))
    return f"{value:.{digits}f}"


def duration_text(seconds: float | None) -> str:
    """A duration in its two largest units.

    >>> duration_text(8.26), duration_text(95), duration_text(7384)
    ('8.3 s', '1 min 35 s', '2 h 03 min')
    """
    if seconds is None or not 0 <= seconds < 1e12:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    hours, minutes = divmod(total // 60, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"
