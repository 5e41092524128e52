"""What an agent acts in. Environments are found by name and imported on first use."""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any

from flashreinforce_molt.config import Config, SettingError
from flashreinforce_molt.environments.base import (
    Chat,
    Demonstration,
    Environment,
    EpisodeLost,
    Step,
    Suite,
    Task,
    TaskSource,
    opened,
)

SUITES = {
    "alfworld": "flashreinforce_molt.environments.alfworld:AlfWorld",
    "math": "flashreinforce_molt.environments.math:Math",
    "python_tool": "flashreinforce_molt.environments.python_tool:PythonTool",
    "reasoning_gym": "flashreinforce_molt.environments.reasoning_gym:ReasoningGym",
    "tool_demo": "flashreinforce_molt.environments.tool_demo:ToolDemo",
}
"""Name of an environment -> module and class of its suite. `environment.name` also takes such a path itself."""

__all__ = [
    "SUITES",
    "Chat",
    "Demonstration",
    "Environment",
    "EpisodeLost",
    "Step",
    "Suite",
    "Task",
    "TaskSource",
    "make_suite",
    "opened",
    "options_of",
]


def make_suite(name: str, options: dict[str, Any]) -> Suite:
    """Build the suite that `environment.name` and `environment.options` describe.

    Raises SettingError when the name is unknown or the suite refuses an option.
    """
    suite_type = _suite_type(name)
    _validate_options(name, suite_type, options)
    return suite_type(**options)


def options_of(config: Config) -> dict[str, Any]:
    """`environment.options`, and the files of `data` and `evaluation.suites` for a suite with options for them."""
    files = {
        "path": config.data.path,
        "max_rows": config.data.max_rows,
        "evaluation_path": [suite["path"] for suite in config.evaluation.suites.values()],
    }
    known = inspect.signature(_suite_type(config.environment.name)).parameters
    return {
        name: value for name, value in files.items() if value and name in known
    } | config.environment.options


def _suite_type(name: str) -> Any:
    path = SUITES.get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        near = difflib.get_close_matches(name, SUITES, n=3, cutoff=0.3) or sorted(SUITES)
        raise SettingError(
            f"environment.name={name!r} is not registered; nearest: {', '.join(near)}. "
            "Your own suite is named as `package.module:Class`"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"environment.name={name!r}: {path} cannot be imported ({error})") from error


def _validate_options(name: str, suite_type: Any, options: dict[str, Any]) -> None:
    """Options are the keyword arguments of the suite; unknown and missing ones are named."""
    parameters = inspect.signature(suite_type).parameters
    known = [key for key in parameters if parameters[key].kind is not inspect.Parameter.VAR_KEYWORD]
    for key in options:
        if key not in known and len(known) == len(parameters):
            near = difflib.get_close_matches(key, known, n=3, cutoff=0.3) or known
            raise SettingError(
                f"environment.options.{key}: {name} has no such option; nearest: {', '.join(near)}"
            )
    missing = [
        key for key in known if parameters[key].default is inspect.Parameter.empty and key not in options
    ]
    if missing:
        raise SettingError(f"environment.options: {name} needs {', '.join(missing)}")
