"""Running model-written Python: warm, isolated, bounded, and never silently on the bare host.

    async with PythonSandbox() as box:
        result = await box.run("print(2 + 2)", timeout=3.0)

The names load on first use: the server side of the package lives in every snippet's process and must stay small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashreinforce_molt.sandbox.client import PythonSandbox as PythonSandbox
    from flashreinforce_molt.sandbox.config import Isolation as Isolation
    from flashreinforce_molt.sandbox.config import Limits as Limits
    from flashreinforce_molt.sandbox.config import SandboxUnavailable as SandboxUnavailable
    from flashreinforce_molt.sandbox.result import STATUSES as STATUSES
    from flashreinforce_molt.sandbox.result import Result as Result
    from flashreinforce_molt.sandbox.session import Session as Session

_HOME_OF = {
    "PythonSandbox": "client",
    "Session": "session",
    "Isolation": "config",
    "Limits": "config",
    "SandboxUnavailable": "config",
    "Result": "result",
    "STATUSES": "result",
}

__all__ = ["STATUSES", "Isolation", "Limits", "PythonSandbox", "Result", "SandboxUnavailable", "Session"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
