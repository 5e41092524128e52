"""FlashREINFORCE: critic-free, single-rollout, asynchronous RL for agentic language models.

The public names load on first use, so that `import flashreinforce_molt` costs no torch import.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME_OF = {
    "flashreinforce_loss": "flashreinforce_molt.objective",
    "BatchTotals": "flashreinforce_molt.objective",
    "Trajectory": "flashreinforce_molt.trajectory",
    "TrajectoryBatch": "flashreinforce_molt.trajectory",
    "load_experiment": "flashreinforce_molt.recipes",
    "SettingError": "flashreinforce_molt.config",
}

__all__ = [*_HOME_OF, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
