"""Which weights sampled a trajectory: Molt does not record it, so runner and learner do.

The learner publishes a version number while the engines are paused for new weights (`controller`); a runner reads it
around every request. Molt's transport cannot say where in a request new weights entered, so tokens of a request that
spans an update count with the version at its start, an upper bound of their lag, and are counted.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from flashreinforce_molt.molt.registration import expect_parameters

BOARD = "flashreinforce_molt_policy_version"
"""Name of the Ray actor that holds the version."""
STAMP = "flash_version_"
"""Prefix of the stamps in the info of a trajectory; the controller takes them out before Molt logs the rest."""


class VersionBoard:
    """The version that the engines run, for one job."""

    def __init__(self) -> None:
        self._version = 0

    def publish(self, version: int) -> None:
        self._version = version

    def current(self) -> int:
        return self._version


def open_board() -> Any:
    """The board of this Ray job, made on first use; it lives as long as the caller keeps it."""
    import ray

    return ray.remote(VersionBoard).options(name=BOARD, get_if_exists=True, num_cpus=0).remote()


async def _read_board() -> int | None:
    """The current version, or None when nothing trains (an evaluation alone has no learner)."""
    import ray

    try:
        board = ray.get_actor(BOARD)
    except ValueError:
        return None
    return await board.current.remote()


def extend(agents: ModuleType) -> None:
    """Let every runner that `molt.agents.base` loads stamp its trajectories."""
    expect_parameters(agents.load_agent_runner, "agent_path")
    load = agents.load_agent_runner

    @functools.wraps(load)
    def load_stamping(agent_path: str) -> Any:
        runner = load(agent_path)
        stamp_trajectories(runner, one_engine_per_call=isinstance(runner, agents.StepEnvRunner))
        return runner

    vars(agents)["load_agent_runner"] = load_stamping


def stamp_trajectories(
    runner: Any, *, one_engine_per_call: bool, version: Callable[[], Awaitable[int | None]] = _read_board
) -> None:
    """Wrap `runner.execute` so that its trajectories say which versions sampled them.

    A runner that keeps the engine of its first call (Molt's chat server) cannot be watched request by request; its
    trajectories count as sampled at the version of their start.
    """
    execute = runner.execute

    @functools.wraps(execute)
    async def stamped(*args: Any, llm_engine: Any, **kwargs: Any) -> Any:
        first = await version()
        if first is None:
            return await execute(*args, llm_engine=llm_engine, **kwargs)
        watched = _WatchedEngine(llm_engine, version)
        result = await execute(*args, llm_engine=watched if one_engine_per_call else llm_engine, **kwargs)
        last = await version()
        assert last is not None
        for trajectory in result if isinstance(result, list) else [result]:
            tokens = sum(end - start for start, end in trajectory.action_ranges)
            if one_engine_per_call and watched.requests:
                sampled, across = watched.tokens_times_version, watched.tokens_across
                first = watched.requests[0][0]
            else:
                sampled, across = tokens * first, tokens if last != first else 0
            stamps = {
                "first": first,
                "last": last,
                "tokens": tokens,
                "tokens_times_version": sampled,
                "tokens_across": across,
            }
            trajectory.extra_logs = {
                **(trajectory.extra_logs or {}),
                **{STAMP + name: value for name, value in stamps.items()},
            }
        return result

    runner.execute = stamped


@dataclass
class _WatchedEngine:
    """Molt's transport, with the version before and after each request."""

    engine: Any
    version: Callable[[], Awaitable[int | None]]
    requests: list[tuple[int, int, int]] = field(default_factory=list)
    """(version at the start, at the end, tokens)."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        before = await self.version() or 0
        answer = await self.engine.generate(*args, **kwargs)
        after = await self.version() or 0
        self.requests.append((before, after, len(answer[0].outputs[0].token_ids)))
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    @property
    def tokens_times_version(self) -> int:
        return sum(before * tokens for before, _, tokens in self.requests)

    @property
    def tokens_across(self) -> int:
        return sum(tokens for before, after, tokens in self.requests if before != after)


@dataclass(frozen=True)
class Stamps:
    """Of one row: versions at its first token and its end, and sums over its policy tokens."""

    tokens: int
    first: int
    last: int
    tokens_times_version: int
    tokens_across: int


def take_stamps(info: dict[str, Any]) -> Stamps | None:
    """Remove the stamps from an experience's info; None when it has none."""
    found = {name.removeprefix(STAMP): int(info.pop(name)) for name in list(info) if name.startswith(STAMP)}
    return Stamps(**found) if found else None


def lag_metrics(stamps: Sequence[Stamps], learner_version: int) -> dict[str, float]:
    """Policy lag of a batch at the update from `learner_version`, over policy tokens; mean = in flight + in queue."""
    tokens = sum(stamp.tokens for stamp in stamps)
    if not tokens:
        return {}
    sampled = sum(stamp.tokens_times_version for stamp in stamps) / tokens
    finished = sum(stamp.last * stamp.tokens for stamp in stamps) / tokens
    return {
        "flash/policy_lag_mean": learner_version - sampled,
        "flash/policy_lag_max": float(learner_version - min(stamp.first for stamp in stamps)),
        "flash/lag_in_flight": finished - sampled,
        "flash/lag_in_queue": learner_version - finished,
        "flash/tokens_across_update": float(sum(stamp.tokens_across for stamp in stamps)),
    }
