"""An argument parser whose own complaints show no secret that was typed."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from flashreinforce_molt.telemetry.redaction import redact


class CommandParser(argparse.ArgumentParser):
    """argparse repeats what it does not understand: `--hf-token hf_...` would end in the log of a scheduler."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            # As a list, so that the value of a secret flag goes whole, blanks included.
            self.error(f"unrecognized arguments: {shlex.join(redact(unknown))}")
        return options

    def error(self, message: str) -> NoReturn:
        super().error(redact(message))
