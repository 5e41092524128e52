"""The one exception for a person's mistake in a setting."""

from __future__ import annotations

from collections.abc import Sequence


class SettingError(ValueError):
    """A setting is unknown, has a wrong type or value, or contradicts another; the message names the fix.

    `problems` holds one message for each mistake, so that a person can mend all of them at once.
    """

    def __init__(self, *problems: str) -> None:
        self.problems: tuple[str, ...] = problems
        super().__init__(_listed(problems))

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, ...]]:
        return type(self), self.problems


def _listed(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems:" + "".join(f"\n  - {problem}" for problem in problems)
