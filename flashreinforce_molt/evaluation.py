"""Held-out evaluation with the learner's current weights, by the same decoder and environments as training."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flashreinforce_molt.config import Config
from flashreinforce_molt.environments.base import Suite, Task, opened
from flashreinforce_molt.models import Policy
from flashreinforce_molt.rollout.episodes import Dropped, EpisodeRunner
from flashreinforce_molt.rollout.generator import SlotGenerator
from flashreinforce_molt.rollout.plan import limits_of, stop_tokens
from flashreinforce_molt.rollout.sampling import Sampling
from flashreinforce_molt.trajectory import Trajectory

EXAMPLES = 8
"""Sampled answers that an evaluation keeps for people to read."""

MAX_LOST_SHARE = 0.05
"""An evaluation that loses more of its episodes than this, to tools or graders that broke, says nothing."""


@dataclass(frozen=True)
class EvaluationResult:
    """Accuracy on held-out tasks: the share of judged episodes whose environment says that they did not fail."""

    sampled_accuracy: float
    greedy_accuracy: float
    constant_answer_baseline: float | None
    tasks: int
    samples: int
    examples: list[dict[str, Any]]
    """Some sampled answers to read: prompt, response and score."""
    lost: dict[str, int] = field(default_factory=dict)
    """Episodes that nobody could judge, by reason; they are no part of the accuracies."""


def evaluate(policy: Policy, suite: Suite, tasks: Sequence[Task], config: Config) -> EvaluationResult:
    """Play every task `evaluation.samples` times sampled and once greedily.

    A missing verdict is never counted as a failure. Raises RuntimeError when more than `MAX_LOST_SHARE` are missing.
    """
    settings = config.evaluation
    sampled = Sampling(temperature=settings.temperature, top_p=settings.top_p)

    async def play() -> tuple[list[Trajectory | Dropped], list[Trajectory | Dropped]]:
        async with opened(suite):
            return (
                await _play_all(policy, suite, list(tasks) * settings.samples, config, sampled),
                await _play_all(policy, suite, tasks, config, Sampling(greedy=True)),
            )

    lost: Counter[str] = Counter()
    answers, greedy = (_judged(played, lost) for played in asyncio.run(play()))
    return EvaluationResult(
        sampled_accuracy=statistics.fmean(not answer.failed for answer in answers),
        greedy_accuracy=statistics.fmean(not answer.failed for answer in greedy),
        constant_answer_baseline=_constant_answer_baseline(suite, tasks),
        tasks=len(tasks),
        samples=settings.samples,
        examples=[_example(policy, answer) for answer in answers[:EXAMPLES]],
        lost=dict(lost),
    )


async def _play_all(
    policy: Policy, suite: Suite, tasks: Sequence[Task], config: Config, sampling: Sampling
) -> list[Trajectory | Dropped]:
    policy.model.eval()
    limits = limits_of(config)
    generator = SlotGenerator(
        policy.model,
        slots=min(len(tasks), 2 * config.rollout.in_flight),
        max_context=limits.max_context_tokens,
        stop_tokens=stop_tokens(policy),
        sampling=sampling,
    )
    # Another stream of random numbers than the rollouts of the same seed.
    runner = EpisodeRunner(
        generator,
        suite,
        policy.tokenizer,
        limits,
        seed=2**32 + config.seed,
        lockstep=config.engine.deterministic,
    )
    return await _play(runner, tasks)


async def _play(runner: EpisodeRunner, tasks: Sequence[Task]) -> list[Trajectory | Dropped]:
    waiting = deque(enumerate(tasks))
    played: dict[int, Trajectory | Dropped] = {}
    try:
        while len(played) < len(tasks):
            while waiting and runner.free:
                runner.start(*waiting.popleft())
            for ended in await runner.advance():
                played[ended.trajectory_id] = ended
            if runner.idle and len(played) < len(tasks) and not (waiting and runner.free):
                await runner.changed.wait()
    finally:
        await runner.close()
    return [played[i] for i in range(len(tasks))]


def _judged(played: Sequence[Trajectory | Dropped], lost: Counter[str]) -> list[Trajectory]:
    """The episodes that have a verdict; the reasons of the others are added to `lost`."""
    drops = [ended for ended in played if isinstance(ended, Dropped)]
    if len(drops) > MAX_LOST_SHARE * len(played):
        last = drops[-1]
        raise RuntimeError(
            f"evaluation lost {len(drops)} of {len(played)} episodes; {last.prompt_id}: {last.reason} ({last.detail})"
        )
    lost.update(ended.reason for ended in drops)
    judged = [ended for ended in played if isinstance(ended, Trajectory)]
    for ended in judged:
        if ended.failed is None:
            raise RuntimeError(f"evaluation of {ended.prompt_id}: the environment gave no `failed` label")
    return judged


def _example(policy: Policy, trajectory: Trajectory) -> dict[str, Any]:
    first = int(trajectory.action_mask.argmax())
    decode = policy.tokenizer.decode
    return {
        "prompt": decode(trajectory.tokens[:first]),
        "response": decode(trajectory.tokens[first:]),
        "score": trajectory.reward,
    }


def _constant_answer_baseline(suite: Suite, tasks: Sequence[Task]) -> float | None:
    """Accuracy of the best single answer to every task; None when the suite knows no such answer."""
    constant, is_correct = getattr(suite, "constant_answer", None), getattr(suite, "is_correct", None)
    if constant is None or is_correct is None:
        return None
    answer = constant(tasks)
    return sum(is_correct(task, answer) for task in tasks) / len(tasks)
