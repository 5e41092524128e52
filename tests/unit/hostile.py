"""What came of an action that may be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def told(action: Callable[[], Any], kind: type[Exception]) -> tuple[Any, str]:
    """The result and "", or None and the message of a refusal; of exactly this kind, for a subclass may be a leak."""
    try:
        return action(), ""
    except kind as error:
        if type(error) is not kind:
            raise
        return None, str(error)
