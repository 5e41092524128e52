"""Molt's own command line, reached without starting a run: its parser, its checks, its derived values.

`molt/cli/train_rl_ray.py` builds the parser inside `if __name__ == "__main__":` and ends that block with `train(args)`.
The module's source is split with `ast` and the block is run in a namespace whose `train` only records its argument
and whose parser also knows our options. Nothing of Molt is copied or edited, and neither torch nor Ray is imported.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.util
import io
import math
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.molt.options import MOLT_VERSION, add_flash_options

_MODULE = "cli/train_rl_ray.py"
_HELPER = ("trainer/algorithm/experience.py", "get_model_parallel_size")
"""The one function of the package that the block calls besides the standard library."""


class UnsupportedMolt(RuntimeError):
    """Molt is missing, or is not shaped as this plugin knows it."""


@dataclass(frozen=True)
class MoltCommand:
    """What Molt would hand to its `train()`, and what it printed while it checked and derived values."""

    args: types.SimpleNamespace
    notices: tuple[str, ...]


def parse_molt_command(
    arguments: Sequence[str], extend: Callable[[argparse.ArgumentParser], None] = add_flash_options
) -> MoltCommand:
    """Run Molt's parser and checks on `arguments` (flags and values, without a program name).

    Raises SettingError with Molt's own words where Molt refuses the command, UnsupportedMolt where it is not the
    Molt that this plugin was verified with. `--help` prints and exits, as in Molt.
    """
    root = molt_root()
    recorded: list[types.SimpleNamespace] = []
    names = {
        "__name__": "molt_command",
        "argparse": _parser_module(arguments, extend),
        "copy": copy,
        "math": math,
        "os": os,
        "train": recorded.append,
        _HELPER[1]: _helper(root),
    }
    printed = io.StringIO()
    try:
        with _light_utils(root), contextlib.redirect_stdout(printed):
            exec(_block(root / _MODULE), names)
    except SystemExit:
        sys.stdout.write(printed.getvalue())
        raise
    except (NameError, ImportError, AttributeError) as error:
        raise UnsupportedMolt(f"{root / _MODULE}: {type(error).__name__}: {error}") from error
    except (ValueError, AssertionError, NotImplementedError, RuntimeError) as error:
        raise (
            error if isinstance(error, SettingError) else SettingError(f"Molt refuses the command: {error}")
        ) from error
    if len(recorded) != 1:
        raise UnsupportedMolt(f"{root / _MODULE}: the block called train() {len(recorded)} times")
    return MoltCommand(recorded[0], tuple(line for line in printed.getvalue().splitlines() if line.strip()))


def molt_root() -> Path:
    """Folder of the installed package, found without importing it."""
    spec = importlib.util.find_spec("molt")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedMolt(f"Molt is not installed; install molt-rl=={MOLT_VERSION}")
    return Path(next(iter(spec.submodule_search_locations)))


def _block(path: Path) -> types.CodeType:
    """The body of the main block, whose last statement must be `train(args)`."""
    *_, last = _tree(path).body
    match last:
        case ast.If(
            test=ast.Compare(left=ast.Name(id="__name__")),
            body=[*_, ast.Expr(value=ast.Call(func=ast.Name(id="train"), args=[ast.Name(id="args")]))],
            orelse=[],
        ):
            return compile(ast.Module(body=last.body, type_ignores=[]), str(path), "exec")
    raise UnsupportedMolt(f"{path} does not end with a main block that calls train(args)")


def _helper(root: Path) -> Callable[..., Any]:
    path, name = root / _HELPER[0], _HELPER[1]
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found: dict[str, Any] = {}
            exec(compile(ast.Module(body=[node], type_ignores=[]), str(path), "exec"), found)
            return found[name]
    raise UnsupportedMolt(f"{path} has no function {name}")


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, SyntaxError) as error:
        raise UnsupportedMolt(f"{path} cannot be read: {error}") from error


def _parser_module(
    arguments: Sequence[str], extend: Callable[[argparse.ArgumentParser], None]
) -> types.ModuleType:
    """argparse as the block sees it: the parser reads `arguments`, knows our options, and raises instead of exiting."""

    class Parser(argparse.ArgumentParser):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(prog="molt.cli.train_rl_ray", allow_abbrev=False, **kwargs)

        def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
            extend(self)
            return super().parse_args(list(arguments) if args is None else args, namespace)

        def error(self, message: str) -> Any:
            raise SettingError(f"Molt's parser: {message}")

    module = types.ModuleType("argparse")
    module.__dict__.update(vars(argparse), ArgumentParser=Parser)
    return module


@contextlib.contextmanager
def _light_utils(root: Path) -> Iterator[None]:
    """Let the block import `molt.utils.config` without `molt/utils/__init__.py`, which loads torch."""
    if "molt.utils" in sys.modules:
        yield
        return
    package = types.ModuleType("molt.utils")
    package.__path__ = [str(root / "utils")]
    sys.modules["molt.utils"] = package
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name == "molt.utils" or name.startswith("molt.utils.")]:
            del sys.modules[name]
