"""Molt's status of an update as a line of our `metrics.jsonl`, so that report and live view read every engine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashreinforce_molt.telemetry import MetricsLog, read_metrics

VARIABLE = "FLASHREINFORCE_MOLT_RUN_DIR"
"""Environment variable of the workers with the run directory; unset: Molt's own logs only."""

_FROM_MOLT = {
    "reward_mean": "rollout/reward_mean",
    "reward_std": "rollout/reward_std",
    "acceptance_rate": "flash/acceptance_rate",
    "sequence_kl_mean": "flash/sequence_kl_mean",
    "sequence_kl_max": "flash/sequence_kl_max",
    "ratio_max": "flash/ratio_max",
    "top_token_share": "flash/top_token_share",
    "policy_lag_mean": "flash/policy_lag_mean",
    "policy_lag_max": "flash/policy_lag_max",
    "lag_in_flight": "flash/lag_in_flight",
    "lag_in_queue": "flash/lag_in_queue",
    "response_tokens_mean": "rollout/response_length_mean",
    "truncated_fraction": "rollout/truncated_rate",
    "entropy_mean": "entropy_loss",
    "grad_norm": "actor_grad_norm",
    "lr": "actor_lr",
    "learner_idle_s": "timing/actor_idle_wait",
    "step_s": "timing/step_total",
}
"""Our name -> Molt's; what Molt did not report becomes null."""


def metrics_line(
    update: int, status: Mapping[str, Any], before: Mapping[str, Any], wall_s: float
) -> dict[str, Any]:
    """The line of an update; `before` is the line of the update before it, empty for the first."""
    line: dict[str, Any] = {"update": update}
    line |= {ours: _number(status.get(molts)) for ours, molts in _FROM_MOLT.items()}
    trajectories = _number(status.get("rollout/num_rollouts")) or 0
    dropped = _number(status.get("rollout/dropped/total")) or 0
    line["trajectories_total"] = int(before.get("trajectories_total") or 0) + int(trajectories)
    line["dropped_total"] = int(before.get("dropped_total") or 0) + int(dropped)
    tokens, seconds = _number(status.get("flash/policy_tokens")), line["step_s"]
    line["rollout_tokens_per_s"] = tokens / seconds if tokens and seconds else None
    line["wall_s"] = wall_s
    for name, value in status.items():
        if name.startswith("env_"):
            line[f"{_plain(name.removeprefix('env_'))}_mean"] = _number(value)
        elif name.startswith("flash/") and name not in _FROM_MOLT.values():
            line[_plain(name.removeprefix("flash/"))] = _number(value)
    return line


class RunMetrics:
    """Writes `metrics.jsonl` in the run directory, from the process of Molt's controller."""

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self._run_dir = Path(run_dir)
        self._log: MetricsLog | None = None
        self._before: Mapping[str, Any] = {}
        self._began = time.monotonic()

    @classmethod
    def from_variable(cls) -> RunMetrics | None:
        """As the launch asked for it."""
        run_dir = os.environ.get(VARIABLE)
        return cls(run_dir) if run_dir else None

    def append(self, update: int, status: Mapping[str, Any]) -> None:
        """Write one update; the first one after a resume removes what a crash left behind its checkpoint."""
        if self._log is None:
            self._log = MetricsLog(self._run_dir, resume_at=update - 1 if update > 1 else None)
            lines = read_metrics(self._run_dir / "metrics.jsonl").lines
            self._before = lines[-1] if lines else {}
            self._began -= float(self._before.get("wall_s") or 0.0)
        line = metrics_line(update, status, self._before, time.monotonic() - self._began)
        self._before = self._log.append(line)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if value == value and abs(value) != float("inf") else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", name.lower())
