"""Any value as a short text for an error message."""

from __future__ import annotations

from typing import Any

_LONGEST = 60


def shown(value: Any) -> str:
    """`repr(value)`, shortened; it never fails, whatever the value is."""
    if isinstance(value, (str, bytes)):
        value = value[: _LONGEST + 1]  # what is not shown need not be quoted
    try:
        text = repr(value)
    except ValueError:  # an integer with thousands of digits
        return "a huge integer"
    except Exception:  # the value's own fault, and no reason to lose the message
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
