"""From settings to what the rollout workers need."""

from __future__ import annotations

from flashreinforce_molt.config import Config
from flashreinforce_molt.environments import options_of
from flashreinforce_molt.models import Policy
from flashreinforce_molt.rollout.codec import stop_tokens_of
from flashreinforce_molt.rollout.episodes import Limits
from flashreinforce_molt.rollout.pool import Bounds
from flashreinforce_molt.rollout.sampling import Sampling
from flashreinforce_molt.rollout.worker import WorkerPlan


def limits_of(config: Config) -> Limits:
    """Budgets of one trajectory."""
    return Limits(
        max_new_tokens=config.rollout.max_new_tokens,
        max_context_tokens=config.rollout.max_context_tokens,
        max_turn_tokens=config.rollout.max_turn_tokens,
        max_turns=config.environment.max_turns,
        step_timeout_s=config.environment.step_timeout_s,
    )


def bounds_of(config: Config) -> Bounds:
    """How far rollout may run ahead; a synchronous run never does."""
    return Bounds(
        batch_size=config.train.batch_size,
        in_flight=config.rollout.in_flight,
        queue_depth=config.rollout.queue_depth,
        max_policy_lag=0 if is_lockstep(config) else config.rollout.max_policy_lag,
    )


def is_lockstep(config: Config) -> bool:
    """Whether batches are collected strictly one after the other."""
    return config.engine.mode == "sync" or config.engine.deterministic


def stop_tokens(policy: Policy) -> frozenset[int]:
    """Tokens that end a turn of this policy."""
    generation = policy.model.generation_config
    return stop_tokens_of(policy.tokenizer, generation.eos_token_id if generation else None)


def worker_plans(config: Config, policy: Policy) -> list[WorkerPlan]:
    """One plan for each worker; the slots are dealt out evenly."""
    rollout, engine = config.rollout, config.engine
    share, more = divmod(rollout.in_flight, engine.workers)
    return [
        WorkerPlan(
            name=f"worker-{i}",
            model_config=policy.model.config,
            dtype=config.model.dtype,
            device=engine.device,
            threads=engine.threads,
            tokenizer=policy.tokenizer,
            stop_tokens=stop_tokens(policy),
            environment=config.environment.name,
            environment_options=options_of(config),
            slots=share + (i < more),
            limits=limits_of(config),
            sampling=Sampling(
                temperature=rollout.temperature,
                top_p=rollout.top_p,
                top_k=rollout.top_k,
                min_p=rollout.min_p,
                repetition_penalty=rollout.repetition_penalty,
            ),
            seed=config.seed,
            max_policy_lag=bounds_of(config).max_policy_lag,
            drain_before_new_weights=rollout.publication == "between_trajectories",
            lockstep=engine.deterministic,
        )
        for i in range(engine.workers)
    ]
