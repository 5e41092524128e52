"""A valid Molt command of our method, for the tests of the plugin."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "actor.model_name_or_path": "m",
    "train.agent_path": "agent.py",
    "vllm.num_engines": 1,
    "actor.num_gpus_per_node": 1,
    "train.force_on_policy": True,
    "actor.loss_mode": "flash",
    "actor.loss_agg_mode": "seq-mean-token-mean",
    "algo.advantage.estimator": "flash_trajectory",
    "algo.advantage.is_correction_level": "seq",
    "algo.advantage.is_correction_gating": "binary_kl",
    "algo.advantage.is_correction_threshold": 3e-3,
    "flash.log_ratio_limit": 30.0,
}


def molt_command(changes: dict[str, Any] | None = None) -> list[str]:
    """BASE with `changes` (None removes a flag) as command-line words."""
    words: list[str] = []
    for name, value in {**BASE, **(changes or {})}.items():
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{name}", *map(str, value)]
        elif value is not None:
            words += [f"--{name}", str(value)]
    return words
