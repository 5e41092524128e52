"""The contract between an environment and whatever engine drives it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Message = dict[str, Any]
"""A chat message with `role` and `content`, as chat templates read it."""

Text = str | list[Message]
"""What an environment says: plain text, or chat messages for the model's own template."""


@dataclass(frozen=True)
class Task:
    """One prompt of the data order; `data` is what the environment needs to pose and judge it."""

    prompt_id: str
    data: Mapping[str, Any]


class Step(NamedTuple):
    """What an environment answers to an action.

    `info["failed"]` (bool) is the explicit failure label of a trajectory that ended; other numeric entries become
    metrics of the run.
    """

    observation: Text | None
    reward: float
    terminated: bool
    truncated: bool = False
    info: Mapping[str, Any] = {}


class Environment(Protocol):
    """One episode at a time. It knows no engine, tokenizer or trainer, and owns its resources."""

    def reset(self, task: Task) -> Text | Awaitable[Text]:
        """Start an episode and return what the model reads first."""
        ...

    async def step(self, action: str) -> Step:
        """Act; must not block the event loop (move blocking work to a thread or a process)."""
        ...

    async def close(self) -> None:
        """Give back every resource; called exactly once, on every path."""
        ...


@dataclass(frozen=True)
class Demonstration:
    """A supervised example for a warm start."""

    prompt: Text
    answer: str


class TaskSource(Protocol):
    """The data order: the task at every position, so that a run can be resumed at one."""

    def __getitem__(self, position: int) -> Task: ...


class Suite(Protocol):
    """A registered environment: its tasks and its episodes."""

    def training_tasks(self, seed: int) -> TaskSource:
        """The data order of a run."""
        ...

    def evaluation_tasks(self, size: int) -> Sequence[Task]:
        """`size` held-out tasks, disjoint from every training order."""
        ...

    def environment(self) -> Environment:
        """A fresh environment for one episode."""
        ...


@dataclass(frozen=True)
class SuiteInfo:
    """Where a suite lives, and the install that brings what it needs."""

    module: str
    name: str
    extra: str = ""
    options: tuple[str, ...] = field(default=())
