"""How a setting declares its default and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any


def setting(
    default: Any,
    *,
    choices: Sequence[str] | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    hint: str | None = None,
) -> Any:
    """A dataclass field whose limits the recipe loader enforces.

    `minimum` and `maximum` are inclusive, `above` is exclusive. `hint` is what a person reads after a value
    outside the limits: why they exist, or which other setting is meant.
    """
    limits = {"choices": choices, "minimum": minimum, "above": above, "maximum": maximum, "hint": hint}
    metadata = {name: limit for name, limit in limits.items() if limit is not None}
    return field(default=default, metadata=metadata)
