"""A batch in which everything happens that a layout could get wrong, and the ways of counting that it must survive."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from flashreinforce_molt import Trajectory, TrajectoryBatch
from flashreinforce_molt.trajectory import PaddedRows

VOCABULARY = 32
DELTA = 0.15
FAR = 1.4
"""Drift of a token that the learner finds unlikely: one of about 13 is less than DELTA, one of 6 or 7 more."""

# name: (tokens of each row, failed, policy tokens (by number) that are far from the learner)
SPECIAL = {
    "plain": ((9,), False, ()),
    "rejected": ((12,), False, range(99)),
    "filtered": ((11,), True, ()),
    "three rows": ((6, 9, 4), False, (0,)),
    "straddles the cut, admitted": ((17,), False, (2,)),
    "straddles the cut, rejected": ((17,), True, (1, 2)),
    "short": ((3,), True, ()),
    "rejected by its second row": ((7, 8), False, range(4, 99)),
}

OBJECTIVES = {
    "method": {"delta": DELTA},
    "filter": {"delta": DELTA, "negative_token_fraction": 0.5},
    "filter, through the ratio": {
        "delta": DELTA,
        "negative_token_fraction": 0.3,
        "ratio_gradient": "through",
    },
    "token-mean, token gate": {"delta": DELTA, "aggregation": "token-mean", "gate": "token"},
}


def special_batch(score: Callable[[PaddedRows], Tensor]) -> TrajectoryBatch:
    """The trajectories of SPECIAL; `score` gives the learner's own log-probs [R, T-1], which they stay close to."""
    draw = np.random.default_rng(7)
    made = [_trajectory(draw, number, *facts[:2]) for number, facts in enumerate(SPECIAL.values())]
    rows = TrajectoryBatch(made).padded()
    learner = score(rows)[rows.action_mask].detach().double().numpy()
    done, batch = 0, []
    for trajectory in made:
        own = learner[done : (done := done + trajectory.policy_tokens)]
        behavior = np.minimum(own + draw.normal(scale=0.03, size=own.size), -1e-4)
        far = [n for n in SPECIAL[trajectory.prompt_id][2] if n < own.size]
        behavior[far] = [_behavior_at_drift(math.exp(log_prob), FAR) for log_prob in own[far]]
        batch.append(dataclasses.replace(trajectory, behavior_log_probs=behavior.astype(np.float32)))
    return TrajectoryBatch(batch)


def _trajectory(draw: np.random.Generator, number: int, lengths: tuple[int, ...], failed: bool) -> Trajectory:
    mask = np.concatenate([np.r_[False, np.ones(length - 1, dtype=bool)] for length in lengths])
    mask[4::7] = False  # an observation here and there
    mask[np.cumsum([0, *lengths[:-1]])] = False
    return Trajectory(
        trajectory_id=100 + number,
        prompt_id=list(SPECIAL)[number],
        tokens=draw.integers(0, VOCABULARY, size=mask.size),
        action_mask=mask,
        behavior_log_probs=np.zeros(int(mask.sum()), dtype=np.float32),
        policy_versions=np.zeros(int(mask.sum()), dtype=np.int64),
        reward=float(draw.normal()),
        failed=failed,
        finish_reason="stop",
        finished_version=0,
        row_lengths=lengths if len(lengths) > 1 else None,
    )


def _behavior_at_drift(q: float, drift: float) -> float:
    """log p > log q whose Bernoulli divergence from q is `drift`, by bisection."""
    low, high = q, 1 - 1e-6
    for _ in range(60):
        p = (low + high) / 2
        divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
        low, high = (p, high) if divergence < drift else (low, p)
    return math.log(p)


def relative_error(measured: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest expected value."""
    return float(
        (measured - expected).abs().max() / expected.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    )
