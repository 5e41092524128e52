"""The contract between an environment and whatever engine drives it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Message = dict[str, Any]
"""A chat message with `role` and `content`, as chat templates read it."""


@dataclass(frozen=True)
class Chat:
    """The first messages of an episode with tools, whose schemas the model's own template shows."""

    messages: list[Message]
    tools: Sequence[Mapping[str, Any]] = ()


Text = str | list[Message] | Chat
"""What an environment says: plain text, or chat messages for the model's own template."""


@dataclass(frozen=True)
class Task:
    """One prompt of the data order; `data` is what the environment needs to pose and judge it."""

    prompt_id: str
    data: Mapping[str, Any]


class Step(NamedTuple):
    """What an environment answers to an action.

    `info["failed"]` (bool) is the explicit failure label, also of a trajectory that a limit of the engine ends after
    this step. Other numbers add up over the turns, flags keep their last value, and the mean of each over a batch
    becomes the metric `NAME_mean`; so name each in every step, a zero too.
    """

    observation: Text | None
    reward: float
    terminated: bool
    truncated: bool = False
    info: Mapping[str, Any] = {}


class EpisodeLost(Exception):
    """Nobody can tell how an episode went, through no fault of the model: a tool or a grader broke.

    Raised in `reset` or `step`, it drops the trajectory, and the run counts it as `dropped_REASON`. Such an episode
    never gets a reward: a 0 would teach the model that it was wrong.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


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
    """A supervised example for a warm start; what the environment says in it is read, not imitated."""

    prompt: Text
    answer: str
    """The last action."""
    turns: Sequence[tuple[str, Text]] = ()
    """The actions before it, each with the observation that followed."""


class TaskSource(Protocol):
    """The data order: the task at every position, so that a run can be resumed at one."""

    def __getitem__(self, position: int) -> Task: ...


class Suite(Protocol):
    """A registered environment: its tasks and its episodes.

    One that shares something among its episodes, such as a sandbox or a grader, also has `async open()` and
    `async close()`; see `opened`. Further optional methods: `demonstration(task, rng, correct)` for a warm start,
    and `constant_answer(tasks)` with `is_correct(task, answer)` for the baseline of an evaluation.
    """

    def training_tasks(self, seed: int) -> TaskSource:
        """The data order of a run."""
        ...

    def evaluation_tasks(self, size: int) -> Sequence[Task]:
        """`size` held-out tasks, disjoint from every training order."""
        ...

    def environment(self) -> Environment:
        """A fresh environment for one episode."""
        ...


@asynccontextmanager
async def opened(suite: Suite) -> AsyncIterator[None]:
    """What the episodes of a suite share is up inside, and given back on every path.

    A process opens a suite before its first episode: a rollout worker once, the learner for each evaluation. `close`
    is called after an `open` that failed too.
    """
    try:
        if open_suite := getattr(suite, "open", None):
            await open_suite()
        yield
    finally:
        if close_suite := getattr(suite, "close", None):
            await close_suite()
