"""A made-up run for the telemetry tests: the numbers look like training, nothing was trained."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from flashreinforce_molt.telemetry import MetricsLog, write_config, write_provenance


def example_metrics(update: int, *, updates: int = 100, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """The metrics of one update, the same for the same arguments."""
    noise = random.Random(seed * 100_003 + update)
    progress = update / updates
    lag_in_flight, lag_in_queue = 0.8 + 0.1 * noise.random(), 0.6 + 0.3 * noise.random()
    drift = 2e-4 * math.exp(0.4 * noise.gauss(0, 1))
    metrics = {
        "update": update,
        "reward_mean": 0.15 + 0.8 / (1 + math.exp(-8 * (progress - 0.4))) + 0.03 * noise.gauss(0, 1),
        "reward_std": 0.4 - 0.3 * progress,
        "acceptance_rate": 1.0 - 0.01 * (noise.random() > 0.9),
        "sequence_kl_mean": drift,
        "sequence_kl_max": drift * (4 + 10 * noise.random()),
        "ratio_max": 1.2 + 2 * noise.random(),
        "top_token_share": 0.002 + 0.001 * noise.random(),
        "policy_lag_mean": lag_in_flight + lag_in_queue,
        "policy_lag_max": 3,
        "lag_in_flight": lag_in_flight,
        "lag_in_queue": lag_in_queue,
        "response_tokens_mean": 9 + noise.random(),
        "truncated_fraction": max(0.0, 0.08 - 0.1 * progress + 0.01 * noise.gauss(0, 1)),
        "entropy_mean": 1.2 * math.exp(-2 * progress),
        "grad_norm": 0.5 + 0.2 * noise.random(),
        "lr": 1e-3 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))),
        "trajectories_total": 64 * update,
        "dropped_total": 0,
        "rollout_tokens_per_s": 4000 + 400 * noise.random(),
        "learner_idle_s": 0.02 + 0.02 * noise.random(),
        "step_s": 0.18,
        "wall_s": 10 + 0.2 * update,
        "tool_calls_mean": 1 + progress,
    }
    return {**metrics, **changes}


def example_evaluation(update: int, accuracy: float, **changes: Any) -> dict[str, Any]:
    """The result of one evaluation."""
    result = {
        "update": update,
        "sampled_accuracy": accuracy,
        "greedy_accuracy": min(1.0, accuracy + 0.05),
        "constant_answer_baseline": 0.02,
        "tasks": 256,
        "samples": 1,
        "wall_s": 10 + 0.2 * update,
    }
    return {**result, **changes}


def write_example_run(directory: Path, *, updates: int = 100, seed: int = 0, lr: float = 1e-3) -> Path:
    """A complete run directory."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = {
        "seed": (seed, "default"),
        "model.id": (None, "default"),
        "environment.name": ("reasoning_gym", "recipe quickstart"),
        "train.updates": (updates, "recipe quickstart"),
        "train.batch_size": (64, "recipe quickstart"),
        "objective.delta": (3e-3, "paper, Table 4"),
        "optim.lr": (lr, "--set"),
        "rollout.max_policy_lag": (4, "recipe quickstart"),
        "engine.mode": ("async", "default"),
        "warm_start.steps": (150, "recipe quickstart"),
    }
    config: dict[str, Any] = {}
    for name, (value, _) in settings.items():
        *path, last = name.split(".")
        place = config
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    write_config(directory, config)
    write_provenance(
        directory,
        recipe="quickstart",
        variants=["warm"],
        engine="local",
        settings={name: {"value": value, "source": source} for name, (value, source) in settings.items()},
    )
    with MetricsLog(directory) as log:
        for update in range(1, updates + 1):
            log.append(example_metrics(update, updates=updates, seed=seed))
        for update in range(0, updates + 1, max(1, updates // 5)):
            reward = example_metrics(max(update, 1), updates=updates, seed=seed)["reward_mean"]
            log.append_evaluation(example_evaluation(update, max(0.0, min(0.95, reward))))
    return directory


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
