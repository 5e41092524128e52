"""A suite whose episodes share something; what happens to it is written to a file, for tests in other processes."""

from __future__ import annotations

from pathlib import Path

from flashreinforce_molt.environments.base import EpisodeLost, Step, Task


class SharedSuite:
    """`fail`: "open" fails halfway; `lost` of a hundred episodes end without a verdict."""

    def __init__(self, log: str, fail: str = "", lost: int = 0) -> None:
        self.log, self.fail, self.lost = Path(log), fail, lost
        self.is_open = False

    def training_tasks(self, seed: int) -> SharedSuite:
        return self

    def __getitem__(self, position: int) -> Task:
        return Task(f"shared-{position}", {"lost": position % 100 < self.lost})

    def evaluation_tasks(self, size: int) -> list[Task]:
        return [self[i] for i in range(size)]

    def environment(self) -> SharedEpisode:
        return SharedEpisode(self)

    async def open(self) -> None:
        self.note("open")
        if self.fail == "open":
            raise OSError("no room for a sandbox")
        self.is_open = True

    async def close(self) -> None:
        self.note("close")
        self.is_open = False

    def note(self, event: str) -> None:
        with self.log.open("a") as stream:
            stream.write(f"{event}\n")

    def events(self) -> list[str]:
        return self.log.read_text().split()


class SharedEpisode:
    def __init__(self, suite: SharedSuite) -> None:
        self.suite = suite

    async def reset(self, task: Task) -> str:
        assert self.suite.is_open
        self.task = task
        return "ab>"

    async def step(self, action: str) -> Step:
        if self.task.data["lost"]:
            raise EpisodeLost("grader_timeout", "no verdict within 3 s")
        return Step(None, float(len(action) % 2), True, info={"failed": len(action) % 2 == 0})

    async def close(self) -> None:
        pass
