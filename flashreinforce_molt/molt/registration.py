"""How the plugin gets into Molt: into its registries, and around the few functions that have no registry.

Nothing is imported early and no file of Molt is edited. `register()` puts a finder on `sys.meta_path` that waits for
the modules below; each is extended right after Molt has loaded it, in the driver and, through Ray's worker hook, in
every worker. A worker that never loads a module of Molt pays nothing but the finder.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from flashreinforce_molt.molt.cli_block import UnsupportedMolt
from flashreinforce_molt.molt.options import MOLT_VERSION

WORKER_HOOK = "flashreinforce_molt.molt.registration.register"
"""For `ray.init(runtime_env={"worker_process_setup_hook": WORKER_HOOK})`."""

_EXTENSIONS = {
    "molt.models.loss": "flashreinforce_molt.molt.policy_loss",
    "molt.trainer.algorithm.advantage": "flashreinforce_molt.molt.estimator",
    "molt.trainer.rollout.experience_maker": "flashreinforce_molt.molt.experience_rows",
    "molt.trainer.workers.policy_actor": "flashreinforce_molt.molt.learner",
    "molt.trainer.rl_trainer": "flashreinforce_molt.molt.controller",
    "molt.agents.base": "flashreinforce_molt.molt.version_stamps",
}
"""Module of Molt -> our module whose `extend(module)` is called once after it has loaded."""

_MARK = "_flashreinforce_molt_extended"


def register() -> None:
    """Make Molt know our loss, estimator and metrics, in this process. Calling it again changes nothing.

    Raises UnsupportedMolt when Molt is not exactly the version that the plugin was verified with.
    """
    check_version()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in _EXTENSIONS:
        if name in sys.modules:
            _extend(sys.modules[name])


def check_version() -> None:
    """Refuse any Molt but the verified one, and say what another would need."""
    try:
        installed = metadata.version("molt-rl")
    except metadata.PackageNotFoundError:
        raise UnsupportedMolt(f"Molt is not installed; install molt-rl=={MOLT_VERSION}") from None
    if installed != MOLT_VERSION:
        raise UnsupportedMolt(
            f"molt-rl {installed} is installed, but this plugin is verified with {MOLT_VERSION} only. Either install "
            f"molt-rl=={MOLT_VERSION}, or follow docs/molt_plugin.md, 'Another Molt version': its registries, "
            "PolicyTrainer, BaseRLTrainer, balance_experiences and command line must be checked again"
        )


def expect_parameters(function: Callable[..., Any], *names: str) -> None:
    """State an assumption about a function of Molt that we wrap: its parameters begin with `names`.

    Raises UnsupportedMolt when they do not.
    """
    found = tuple(inspect.signature(function).parameters)
    if found[: len(names)] != names:
        raise UnsupportedMolt(
            f"{function.__module__}.{function.__qualname__} takes ({', '.join(found)}), "
            f"but the plugin knows it as ({', '.join(names)}, ...)"
        )


def _extend(module: ModuleType) -> None:
    if not getattr(module, _MARK, False):
        importlib.import_module(_EXTENSIONS[module.__name__]).extend(module)
        setattr(module, _MARK, True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the other finders answer and follows what they find."""

    def __init__(self) -> None:
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _EXTENSIONS or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Molt's own loader, and our extension after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _extend(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
