"""A task that a random model solves now and then and learns in twenty updates: write letters, not signs or digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashreinforce_molt.environments.base import Step, Task


class LetterTask:
    def __init__(self, share: float = 1 / 3, turns: int = 2) -> None:
        self.share, self.turns = share, turns

    def training_tasks(self, seed: int) -> LetterTask:
        return self

    def __getitem__(self, position: int) -> Task:
        return Task(f"letters-{position}", {"question": f"letters {position % 10}?"})

    def evaluation_tasks(self, size: int) -> Sequence[Task]:
        return [self[-1 - position] for position in range(size)]

    def environment(self) -> LetterEpisode:
        return LetterEpisode(self)


class LetterEpisode:
    """Reward 1 when, over all turns, at least `share` of the characters are letters of the first half."""

    def __init__(self, suite: LetterTask) -> None:
        self.suite, self.texts = suite, []

    def reset(self, task: Task) -> list[dict[str, Any]]:
        return [{"role": "user", "content": task.data["question"]}]

    async def step(self, action: str) -> Step:
        self.texts.append(action)
        if len(self.texts) < self.suite.turns:
            return Step([{"role": "user", "content": "more"}], 0.0, False, info={"characters": len(action)})
        text = "".join(self.texts)
        good = sum(character in "abcdefghijklm" for character in text)
        won = bool(text) and good >= self.suite.share * len(text)
        return Step(None, float(won), True, info={"failed": not won, "characters": len(action)})

    async def close(self) -> None: ...
