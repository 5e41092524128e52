"""Random trajectories of one to three rows."""

from __future__ import annotations

import numpy as np

from flashreinforce_molt import Trajectory


def random_trajectory(draw: np.random.Generator, trajectory_id: int) -> Trajectory:
    lengths = draw.integers(2, 12, size=draw.integers(1, 4))
    mask = np.concatenate([np.r_[False, True, draw.random(length - 2) < 0.6] for length in lengths])
    sampled = int(mask.sum())
    versions = np.sort(draw.integers(0, 5, size=sampled))
    return Trajectory(
        trajectory_id=trajectory_id,
        prompt_id=f"prompt {trajectory_id}",
        tokens=draw.integers(0, 20, size=mask.size),
        action_mask=mask,
        behavior_log_probs=-draw.exponential(size=sampled).astype(np.float32),
        policy_versions=versions,
        reward=float(draw.normal()),
        failed=bool(draw.random() < 0.5),
        finish_reason=str(draw.choice(["eos", "length"])),
        finished_version=int(versions[-1] + draw.integers(0, 2)),
        row_lengths=tuple(lengths) if len(lengths) > 1 else None,
    )


def random_trajectories(seed: int, count: int = 6) -> list[Trajectory]:
    draw = np.random.default_rng(seed)
    return [random_trajectory(draw, 100 + number) for number in draw.permutation(count)]
