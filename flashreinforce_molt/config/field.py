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
) -> Any:
    """A dataclass field whose limits the recipe loader enforces.

    `minimum` and `maximum` are inclusive, `above` is exclusive. A dict default becomes a fresh dict.
    """
    limits = {"choices": choices, "minimum": minimum, "above": above, "maximum": maximum}
    metadata = {name: limit for name, limit in limits.items() if limit is not None}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)
