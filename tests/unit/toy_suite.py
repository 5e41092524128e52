"""Environments that misbehave on request, for tests of the rollout engine."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from flashreinforce_molt.environments.base import Step, Task


class ToySuite:
    """`behaviour` says what every step does; the prompt is the position in the data order. `mark` is left by "dies once"."""

    closed = 0

    def __init__(self, behaviour: str = "echo", turns: int = 1, delay: float = 0.0, mark: str = "") -> None:
        self.behaviour, self.turns, self.delay, self.mark = behaviour, turns, delay, mark

    def training_tasks(self, seed: int) -> ToySuite:
        return self

    def __getitem__(self, position: int) -> Task:
        return Task(f"toy-{position}", {"position": position})

    def evaluation_tasks(self, size: int) -> list[Task]:
        return [Task(f"held-out-{i}", {"position": -i}) for i in range(size)]

    def environment(self) -> ToyEpisode:
        return ToyEpisode(self)


class ToyEpisode:
    def __init__(self, suite: ToySuite) -> None:
        self.suite, self.steps = suite, 0

    def reset(self, task: Task) -> str:
        self.position = task.data["position"]
        if self.suite.behaviour == "reset raises":
            raise OSError("no such game")
        return "abc" * 30 if self.suite.behaviour == "long prompt" else f"{abs(self.position) % 100}>"

    async def step(self, action: str) -> Any:
        self.steps += 1
        behaviour = self.suite.behaviour
        if self.suite.delay:
            await asyncio.sleep(self.suite.delay)
        if behaviour == "raises":
            raise KeyError("broken tool")
        if behaviour == "hangs":
            await asyncio.sleep(3600)
        if behaviour == "stalls" and self.position >= 40:
            await asyncio.sleep(3600)
        if behaviour == "none":
            return None
        if behaviour == "nan reward":
            return Step(None, float("nan"), True, info={"failed": True})
        if behaviour == "every third raises once" and self.position % 3 == 2:
            first = Path(f"{self.suite.mark}_{self.position}")
            if not first.exists():
                first.touch()
                raise RuntimeError("flaky")
        if behaviour == "every third raises" and self.position % 3 == 2:
            raise RuntimeError("flaky")
        dies_now = behaviour == "dies once" and self.position == 30 and not Path(self.suite.mark).exists()
        if dies_now:
            Path(self.suite.mark).touch()
        if dies_now or behaviour == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        reward = float(len(action) % 2)
        if self.steps < self.suite.turns:
            return Step(f" {self.steps}.", 0.25, False, info={"tool_calls": 1})
        return Step(None, reward, True, info={"failed": reward == 0, "tool_calls": 1, "note": "done"})

    async def close(self) -> None:
        ToySuite.closed += 1
