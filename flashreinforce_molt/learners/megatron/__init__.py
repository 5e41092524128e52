"""The learner on Megatron-Core: tensor, context, pipeline, data and expert parallel.

The public names load on first use; those that compute on plain `torch.distributed` import no Megatron.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME_OF = {
    "LossSettings": "loss",
    "MegatronLayout": "layout",
    "LearnerError": "team",
    "MegatronLearner": "learner",
    "MegatronTeam": "team",
    "ParallelGroups": "groups",
    "initialize_parallel": "learner",
    "learner_layout": "launch",
    "megatron_loss_func": "loss",
    "megatron_scoring_func": "loss",
    "megatron_weighted_func": "loss",
    "merge_reports": "reports",
    "weigh_batch": "two_pass",
    "start_team": "launch",
    "vocab_parallel_log_probs_and_entropy": "vocab_parallel",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
