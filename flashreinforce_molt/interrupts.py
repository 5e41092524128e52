"""Ctrl-C: once finishes the update and saves, twice stops now."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """While entered, the first SIGINT or SIGTERM calls `on_first` and sets `requested`; the second raises.

    Until `on_first` is set there is nothing to save, and the first one raises KeyboardInterrupt too.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = False
        self.on_first: Callable[[], None] | None = None
        self._say = say
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or self.on_first is None:
            raise KeyboardInterrupt
        self.requested = True
        self._say(
            f"{signal.Signals(number).name}: finishing the update, then saving; once more stops at once"
        )
        self.on_first()
