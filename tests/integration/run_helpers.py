"""Short real runs of the local engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flashreinforce_molt.recipes import load_experiment
from flashreinforce_molt.training import train
from flashreinforce_molt.trajectory import load_trajectories

RECIPE = Path(__file__).with_name("tiny_run.yaml")
TOY = "environment.name=toy_suite:ToySuite"


def run(output: Path, *overrides: str, resume: bool = False) -> int:
    return train(load_experiment(str(RECIPE), overrides=overrides), output, resume=resume)


def metrics_of(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


CLOCK = {"rollout_tokens_per_s", "learner_idle_s", "step_s", "wall_s"}
"""Metrics that no run repeats."""


def without_clock(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in metrics]


def weights_of(output: Path) -> bytes:
    newest = sorted((output / "checkpoints").iterdir())[-1]
    return (newest / "model.safetensors").read_bytes()


def dumped_ids(output: Path) -> list[int]:
    """Ids of the trajectories that `telemetry.dump_trajectories` kept, in order of the updates."""
    return [
        trajectory.trajectory_id
        for path in sorted((output / "trajectories").glob("update_*.safetensors"))
        for trajectory in load_trajectories(path)
    ]
