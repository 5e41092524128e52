"""The review held against the installed Molt's own parser and checks."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.molt.interface import arguments
from flashreinforce_molt.review.document import Review
from flashreinforce_molt.review.molt_rules import predict

_CLOCK = "logger.wandb.run_name"
"""Its default holds the time of day."""


def flat(namespace: types.SimpleNamespace, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Molt's nested namespace by dotted names; pairs and tuples as lists."""
    for name, value in vars(namespace).items():
        if isinstance(value, types.SimpleNamespace):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, _comparable(value)


def parser_problems(review: Review) -> list[str]:
    """What Molt says against the flags, or where it makes something else of them than the review says."""
    from flashreinforce_molt.molt.cli_block import UnsupportedMolt, parse_molt_command
    from flashreinforce_molt.molt.native_checks import is_native, refuse_unproven

    flags = {flag.name: flag.value for flag in review.flags}
    try:
        command = parse_molt_command(arguments(flags))
        if is_native(command.args):
            refuse_unproven(command.args)
    except (SettingError, UnsupportedMolt) as error:
        return [str(error)]
    taken = dict(flat(command.args))
    expected = {name: _comparable(value) for name, value in predict(flags)[0].items()}
    return [
        f"Molt takes {name}={taken.get(name)!r}, the review says {expected.get(name)!r}"
        for name in sorted(taken.keys() | expected.keys())
        if name != _CLOCK and taken.get(name) != expected.get(name)
    ]


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
