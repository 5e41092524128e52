"""Before the first update: do rollout and learner agree about tokens that were sampled with the learner's weights?

At lag 0 the importance ratio is 1 but for rounding. Where it is not, something is wrong that training would hide:
log-probs shifted by one token, another temperature, a stale cache, a tied output layer that was not published.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from flashreinforce_molt.config import Config
from flashreinforce_molt.learners import ReportsLogProbs
from flashreinforce_molt.learners.torch_learner import UpdateResult
from flashreinforce_molt.models import rollout_model
from flashreinforce_molt.rollout.generator import Generation, SlotGenerator
from flashreinforce_molt.rollout.plan import WorkerPlan
from flashreinforce_molt.rollout.sampling import uniforms
from flashreinforce_molt.rollout.weights import WeightStore
from flashreinforce_molt.trajectory import Trajectory, TrajectoryBatch


class OnPolicyError(RuntimeError):
    """Rollout and learner disagree about fresh tokens; the message shows where, and what it looks like."""


@dataclass(frozen=True)
class Tolerance:
    """Differences between recorded and computed log-probs that rounding explains, in nats."""

    mean: float
    largest: float


# Decoding with a cache and scoring in one pass add the same numbers in another order. Measured on small random models
# with spread distributions, float32 differs by 1e-4 at most and 5e-6 in the mean, bfloat16 by 0.9 and 0.07: it has 8
# bits, so that logits between 16 and 32 are 0.125 apart. A mistake differs by a tenth of a nat or more in the mean.
TOLERANCES = {"float32": Tolerance(1e-4, 1e-2), "bfloat16": Tolerance(0.1, 2.0)}

SHOWN = 8
"""Largest differences that the message lists."""
_PROBED, _PROBED_TOKENS = 16, 128
"""Trajectories that are sampled for the check where a batch has no fresh ones, and the tokens of each."""


def full_support(config: Config) -> bool:
    """Whether what is sampled is the learner's own distribution; a truncated one differs by intention."""
    rollout = config.rollout
    return (rollout.top_p, rollout.top_k, rollout.min_p, rollout.repetition_penalty) == (1.0, 0, 0.0, 1.0)


def fresh_trajectories(
    batch: TrajectoryBatch, version: int, restored: Collection[int] = ()
) -> list[Trajectory]:
    """Those that only weights `version` sampled; `restored` ids came from a checkpoint and may hold older keys."""
    return [
        trajectory
        for trajectory in batch
        if trajectory.trajectory_id not in restored and (trajectory.policy_versions == version).all()
    ]


def sample_fresh(
    batch: TrajectoryBatch, store: WeightStore, plan: WorkerPlan, version: int
) -> list[Trajectory]:
    """Answers to prompts of the batch, by the decoder and the weights that a rollout worker of this plan has."""
    model = rollout_model(plan.model_config, plan.dtype, plan.device)
    store.read_into(model)
    asked = batch.trajectories[:_PROBED]
    context = plan.limits.max_context_tokens
    generator = SlotGenerator(
        model,
        slots=len(asked),
        max_context=context,
        stop_tokens=plan.stop_tokens,
        sampling=plan.sampling,
    )
    generator.version = version
    made = []
    for trajectory in asked:
        prompt = trajectory.tokens[: int(trajectory.action_mask.argmax())].tolist()
        generation = Generation(
            trajectory.trajectory_id,
            prompt,
            uniforms(2**33 + plan.seed, trajectory.trajectory_id, _PROBED_TOKENS),
        )
        generation.turn_budget = min(_PROBED_TOKENS, plan.limits.max_new_tokens, context - len(prompt))
        made.append(generation)
    generator.join(made)
    while generator.active:
        for ended in generator.step():
            generator.leave(ended)
    return [
        Trajectory(
            trajectory_id=generation.trajectory_id,
            prompt_id=trajectory.prompt_id,
            tokens=np.array(generation.tokens),
            action_mask=np.array(generation.policy),
            behavior_log_probs=np.array(generation.log_probs),
            policy_versions=np.array(generation.versions),
            reward=0.0,
            finish_reason=generation.end,
            finished_version=version,
        )
        for generation, trajectory in zip(made, asked, strict=True)
    ]


def check_log_probs(learner: ReportsLogProbs, fresh: Sequence[Trajectory], config: Config) -> str:
    """What was compared, in a sentence. Raises OnPolicyError when the two sides differ by more than rounding.

    Log-probs that are not finite are left to the update, which names them.
    """
    batch = TrajectoryBatch(fresh)

    def computed(temperature: float | None = None) -> list[np.ndarray]:
        found = learner.log_probs(batch, temperature=temperature)
        return [found[trajectory.trajectory_id].numpy() for trajectory in batch]

    recorded = [trajectory.behavior_log_probs for trajectory in batch]
    current = computed()
    difference = np.concatenate(current) - np.concatenate(recorded)
    tolerance = TOLERANCES[config.model.dtype]
    size = np.abs(difference)
    compared = (
        f"log-probs of {size.size} fresh tokens differ between rollout and learner by {size.mean():.1e} in the mean "
        f"and {size.max():.1e} at most; {config.model.dtype} explains {tolerance.mean:g} and {tolerance.largest:g}"
    )
    if not np.isfinite(difference).all() or (
        size.mean() <= tolerance.mean and size.max() <= tolerance.largest
    ):
        return f"on-policy check: {compared}"
    likeness = _likeness(recorded, current, computed, config.rollout.temperature, tolerance)
    raise OnPolicyError(
        f"nothing is trained: {compared}.\n{likeness}.\n{_largest(batch.trajectories, recorded, current)}\n"
        "Train in spite of it with --set train.check_on_policy=false"
    )


def check_drift(result: UpdateResult, fresh: Sequence[Trajectory], config: Config) -> str:
    """The same for a learner that reports no log-probs, from the drift of an update that is not yet published."""
    kept = {trajectory.trajectory_id for trajectory in fresh}
    drifts = zip(result.stats["trajectory_ids"].tolist(), result.stats["sequence_kl"].tolist(), strict=True)
    name, drift = max(((name, drift) for name, drift in drifts if name in kept), key=lambda pair: pair[1])
    # A token's Bernoulli KL is about p (1 - p) / 2 times the squared difference of its logit: an eighth at most.
    limit = max(TOLERANCES[config.model.dtype].largest ** 2 / 8, 1e-5)
    compared = f"the largest drift of {len(kept)} fresh trajectories is {drift:.1e} nats per token"
    if drift <= limit:
        return f"on-policy check: {compared}, {config.model.dtype} explains {limit:.1e}"
    raise OnPolicyError(
        f"the first update is not used: {compared} (trajectory {name}), but {config.model.dtype} explains only "
        f"{limit:.1e}: rollout and learner compute other log-probs. Run --engine local to see where they differ, or "
        "train in spite of it with --set train.check_on_policy=false"
    )


def _likeness(
    recorded: Sequence[np.ndarray],
    current: Sequence[np.ndarray],
    computed: Callable[[float], Sequence[np.ndarray]],
    temperature: float,
    tolerance: Tolerance,
) -> str:
    """What the differences look like, in a sentence."""

    def distance(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
        return float(np.concatenate([np.abs(mine - theirs) for mine, theirs in pairs]).mean())

    pairs = list(zip(recorded, current, strict=True))
    near = max(tolerance.mean, 0.05 * distance(pairs))
    if sum(mine.size > 1 for mine in recorded):
        if distance([(mine[1:], theirs[:-1]) for mine, theirs in pairs]) <= near:
            return "It looks like a shift by one: each recorded value is the learner's of the token before"
        if distance([(mine[:-1], theirs[1:]) for mine, theirs in pairs]) <= near:
            return "It looks like a shift by one: each recorded value is the learner's of the token after"
    difference = np.concatenate(current) - np.concatenate(recorded)
    if np.abs(difference - np.median(difference)).mean() <= near:
        return f"It looks like a constant: the learner's values are {np.median(difference):+.4g} nats off"
    fitting, left = _fitting_temperature(
        lambda tried: distance(list(zip(recorded, computed(tried), strict=True))), temperature
    )
    if left <= near:
        return (
            f"It looks like a temperature: the recorded values fit {fitting:.3g}, the learner divides by "
            f"rollout.temperature={temperature:g}"
        )
    if all(abs(mine[0] - theirs[0]) <= tolerance.largest for mine, theirs in pairs):
        return "The first token of every trajectory agrees and later ones do not: look at the cache and the positions"
    return (
        "It is no shift, constant or temperature: look for weights that were not published as a whole, such as a tied "
        "output layer, or for dropout"
    )


def _fitting_temperature(distance: Callable[[float], float], start: float) -> tuple[float, float]:
    """The temperature with the smallest distance, between a quarter and four times `start`: a ternary search."""
    low, high = np.log(start / 4), np.log(start * 4)
    for _ in range(24):
        third = (high - low) / 3
        if distance(float(np.exp(low + third))) < distance(float(np.exp(high - third))):
            high -= third
        else:
            low += third
    best = float(np.exp((low + high) / 2))
    return best, distance(best)


def _largest(
    trajectories: Sequence[Trajectory], recorded: Sequence[np.ndarray], current: Sequence[np.ndarray]
) -> str:
    rows = [
        (abs(float(theirs - mine)), trajectory.trajectory_id, int(token), float(mine), float(theirs))
        for trajectory, of_rollout, of_learner in zip(trajectories, recorded, current, strict=True)
        for token, mine, theirs in zip(
            np.flatnonzero(trajectory.action_mask), of_rollout, of_learner, strict=True
        )
    ]
    lines = [f"{'trajectory':>12} {'token':>6} {'recorded':>12} {'learner':>12} {'difference':>12}"]
    for _, name, token, mine, theirs in sorted(rows, reverse=True)[:SHOWN]:
        lines.append(f"{name:>12} {token:>6} {mine:>12.5f} {theirs:>12.5f} {theirs - mine:>+12.5f}")
    return "\n".join(["The largest differences:", *lines])
