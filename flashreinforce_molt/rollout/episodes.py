"""Driving many episodes at once: the generator decodes while environments answer.

Everything runs on one asyncio loop. An environment that waits for a tool holds a slot but no decode step.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from flashreinforce_molt.environments.base import Environment, EpisodeLost, Step, Suite, Task
from flashreinforce_molt.rollout.codec import decode_turn, encode_observation, encode_prompt
from flashreinforce_molt.rollout.generator import Generation, SlotGenerator
from flashreinforce_molt.rollout.sampling import uniforms
from flashreinforce_molt.trajectory import Trajectory

ENDINGS = ("length", "context_limit", "turn_limit", "environment")
"""How a trajectory ends that does not end by itself: at a limit of the engine, or cut by its environment."""


@dataclass(frozen=True)
class Limits:
    """Budgets of one trajectory, all in tokens but for turns and seconds."""

    max_new_tokens: int
    max_context_tokens: int
    max_turn_tokens: int | None = None
    max_turns: int = 1
    step_timeout_s: float = 30.0


@dataclass(frozen=True)
class Dropped:
    """A trajectory that ended without becoming training data."""

    trajectory_id: int
    prompt_id: str
    reason: str
    detail: str = ""


@dataclass(eq=False)
class _Episode:
    trajectory_id: int
    task: Task
    environment: Environment
    generation: Generation | None = None
    work: asyncio.Task[None] | None = None
    reward: float = 0.0
    failed: bool | None = None
    turns: int = 0
    info: dict[str, Any] = field(default_factory=dict)


class EpisodeRunner:
    """Plays tasks on a generator; finished and dropped trajectories leave in the order in which they end.

    With `lockstep` every environment answers before the next token is drawn, which makes a run reproducible.
    """

    def __init__(
        self,
        generator: SlotGenerator,
        suite: Suite,
        tokenizer: PreTrainedTokenizerBase,
        limits: Limits,
        *,
        seed: int,
        lockstep: bool = False,
    ) -> None:
        self.generator, self.suite, self.tokenizer, self.limits = generator, suite, tokenizer, limits
        self.seed, self.lockstep = seed, lockstep
        self.changed = asyncio.Event()
        """Set whenever an environment has answered or an episode has ended."""
        self._episodes: dict[int, _Episode] = {}
        self._joining: list[_Episode] = []
        self._ended: list[Trajectory | Dropped] = []

    @property
    def free(self) -> int:
        """Episodes that may be started now."""
        return self.generator.slots - len(self._episodes)

    @property
    def idle(self) -> bool:
        """Nothing to decode and nothing that waits to be."""
        return not self.generator.active and not self._joining

    def start(self, trajectory_id: int, task: Task) -> None:
        """Begin an episode in a free slot."""
        episode = _Episode(trajectory_id, task, self.suite.environment())
        self._episodes[trajectory_id] = episode
        self._spawn(episode, self._open)

    async def drop_older_than(self, version: int) -> None:
        """Drop every running episode one of whose tokens was sampled before `version`."""
        for episode in list(self._episodes.values()):
            versions = episode.generation.versions if episode.generation else []
            if versions and versions[0] < version:
                if episode.work:
                    episode.work.cancel()
                detail = (
                    f"first token from version {versions[0]}, oldest that may still be trained: {version}"
                )
                await self._close(
                    episode, Dropped(episode.trajectory_id, episode.task.prompt_id, "policy_lag", detail)
                )

    async def advance(self) -> list[Trajectory | Dropped]:
        """Draw one token for every trajectory that can have one; returns the episodes that ended."""
        self.changed.clear()
        if self.lockstep:
            await self._settle()
        joining = sorted(self._joining, key=lambda episode: episode.trajectory_id)
        self._joining = []
        self.generator.join([episode.generation for episode in joining if episode.generation])
        for generation in self.generator.step():
            self._spawn(self._episodes[generation.trajectory_id], self._act)
        if self.lockstep:
            await self._settle()
        else:
            # The first turn of the loop begins the tasks, the second hears environments that answer at once.
            for _ in range(2):
                await asyncio.sleep(0)
        ended, self._ended = self._ended, []
        return ended

    async def close(self) -> None:
        """Cancel what runs and close every environment."""
        for episode in list(self._episodes.values()):
            if episode.work:
                episode.work.cancel()
            await episode.environment.close()
        self._episodes.clear()

    async def _settle(self) -> None:
        while running := [e.work for e in self._episodes.values() if e.work and not e.work.done()]:
            await asyncio.gather(*running)

    def _spawn(self, episode: _Episode, work: Callable[[_Episode], Awaitable[None]]) -> None:
        episode.work = asyncio.get_running_loop().create_task(self._guard(episode, work))

    async def _guard(self, episode: _Episode, work: Callable[[_Episode], Awaitable[None]]) -> None:
        task, trajectory_id = episode.task, episode.trajectory_id
        try:
            await asyncio.wait_for(work(episode), self.limits.step_timeout_s)
        except asyncio.TimeoutError:
            detail = f"no answer within environment.step_timeout_s={self.limits.step_timeout_s:g}"
            await self._close(episode, Dropped(trajectory_id, task.prompt_id, "environment_timeout", detail))
        except EpisodeLost as lost:
            await self._close(episode, Dropped(trajectory_id, task.prompt_id, lost.reason, str(lost)))
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            await self._close(episode, Dropped(trajectory_id, task.prompt_id, "environment_error", detail))
        self.changed.set()

    async def _open(self, episode: _Episode) -> None:
        prompt = episode.environment.reset(episode.task)
        if inspect.isawaitable(prompt):
            prompt = await prompt
        tokens = encode_prompt(self.tokenizer, prompt)
        if len(tokens) >= self.limits.max_context_tokens:
            raise EpisodeLost(
                "prompt_too_long",
                f"{len(tokens)} prompt tokens leave no room in rollout.max_context_tokens="
                f"{self.limits.max_context_tokens}",
            )
        numbers = uniforms(self.seed, episode.trajectory_id, self.limits.max_new_tokens)
        episode.generation = Generation(episode.trajectory_id, tokens, numbers)
        self._queue_turn(episode)

    def _queue_turn(self, episode: _Episode) -> None:
        assert episode.generation is not None
        episode.generation.turn_budget = self._turn_budget(episode.generation)
        self._joining.append(episode)

    def _turn_budget(self, generation: Generation) -> int:
        limits = self.limits
        budget = limits.max_new_tokens - len(generation.log_probs)
        budget = min(budget, limits.max_context_tokens - len(generation.tokens))
        return budget if limits.max_turn_tokens is None else min(budget, limits.max_turn_tokens)

    async def _act(self, episode: _Episode) -> None:
        generation = episode.generation
        assert generation is not None
        action = decode_turn(self.tokenizer, generation.turn_tokens, self.generator.stop_tokens)
        step = _checked(await episode.environment.step(action))
        episode.turns += 1
        episode.reward += float(step.reward)
        self._note(episode, step.info)
        if step.terminated or step.truncated:
            cut = "length" if generation.end == "length" else "stop"
            await self._finish(episode, generation, "environment" if step.truncated else cut)
        elif episode.turns >= self.limits.max_turns:
            await self._finish(episode, generation, "turn_limit")
        elif len(generation.log_probs) >= self.limits.max_new_tokens:
            await self._finish(episode, generation, "length")
        else:
            await self._observe(episode, generation, step)

    async def _observe(self, episode: _Episode, generation: Generation, step: Step) -> None:
        if step.observation is None:
            raise EpisodeLost(
                "environment_error", "the environment neither ended the episode nor gave an observation"
            )
        stop_token = generation.tokens[-1] if generation.end == "stop" else None
        tokens = encode_observation(self.tokenizer, step.observation, stop_token=stop_token)
        if len(generation.tokens) + len(tokens) >= self.limits.max_context_tokens:
            await self._finish(episode, generation, "context_limit")
            return
        generation.observe(tokens)
        self._queue_turn(episode)

    @staticmethod
    def _note(episode: _Episode, info: Mapping[str, Any]) -> None:
        """Numbers add up over turns; flags and words keep their last value."""
        for name, value in info.items():
            if name == "failed":
                episode.failed = bool(value)
            elif isinstance(value, numbers.Real) and not isinstance(value, bool):
                episode.info[name] = episode.info.get(name, 0) + value
            else:
                episode.info[name] = value

    async def _finish(self, episode: _Episode, generation: Generation, reason: str) -> None:
        mask = np.array(generation.policy)
        trajectory = Trajectory(
            trajectory_id=episode.trajectory_id,
            prompt_id=episode.task.prompt_id,
            tokens=np.array(generation.tokens),
            action_mask=mask,
            behavior_log_probs=np.array(generation.log_probs, dtype=np.float32),
            policy_versions=np.array(generation.versions),
            reward=episode.reward,
            failed=episode.failed,
            finish_reason=reason,
            finished_version=self.generator.version,
            info={"turns": episode.turns, **episode.info},
        )
        await self._close(episode, trajectory)

    async def _close(self, episode: _Episode, result: Trajectory | Dropped) -> None:
        if self._episodes.get(episode.trajectory_id) is not episode:
            return
        self._end(episode, result)
        await episode.environment.close()

    def _end(self, episode: _Episode, result: Trajectory | Dropped) -> None:
        del self._episodes[episode.trajectory_id]
        if episode in self._joining:
            self._joining.remove(episode)
        if episode.generation is not None and self.generator.holds(episode.generation):
            self.generator.leave(episode.generation)
        self._ended.append(result)
        self.changed.set()


def _checked(step: Step) -> Step:
    """The environment's answer, refused by name when it is not one."""
    if not isinstance(step, tuple) or len(step) != 5:
        raise EpisodeLost(
            "environment_error",
            f"step returned {step!r}, not (observation, reward, terminated, truncated, info)",
        )
    step = Step(*step)
    if not isinstance(step.reward, numbers.Real) or not math.isfinite(step.reward):
        raise EpisodeLost(
            "invalid_reward", f"step returned the reward {step.reward!r}; a finite number is needed"
        )
    return step
