"""One sound trajectory record, changed field by field."""

from __future__ import annotations

from typing import Any

from flashreinforce_molt import Trajectory


def facts(**changes: Any) -> dict[str, Any]:
    """Two rows: prompt 10 11, sampled 20 21, observation 12, sampled 22; then prompt 13, sampled 23."""
    return {
        "trajectory_id": 7,
        "prompt_id": "spell/3",
        "tokens": [10, 11, 20, 21, 12, 22, 13, 23],
        "action_mask": [False, False, True, True, False, True, False, True],
        "behavior_log_probs": [-0.5, -0.25, -1.0, -2.0],
        "policy_versions": [3, 3, 4, 5],
        "reward": 0.75,
        "failed": False,
        "finish_reason": "eos",
        "finished_version": 6,
        "info": {"tool_calls": 2, "seconds": 0.1, "seed": "a", "won": True},
        "row_lengths": (6, 2),
    } | changes


def example(**changes: Any) -> Trajectory:
    return Trajectory(**facts(**changes))
