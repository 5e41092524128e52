"""What we add to Molt's command line: the `--flash.*` options and the names that we register.

Pure data: the review prints these options, the launch adds them to Molt's own parser, and nothing here imports Molt.
An optional value that is null is left out of the command.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

MOLT_VERSION = "0.2.1"
LOSS_MODE = "flash"
"""Our choice of `--actor.loss_mode`."""
ESTIMATOR = "flash_trajectory"
"""Our choice of `--algo.advantage.estimator`: the baseline of whole trajectories, also over several rows."""


@dataclass(frozen=True)
class FlashOption:
    """One `--flash.NAME`; `kind` bool becomes a `--flash.NAME` / `--no-flash.NAME` pair."""

    name: str
    kind: type
    default: Any
    help: str
    choices: tuple[str, ...] | None = None

    @property
    def dest(self) -> str:
        return f"flash.{self.name}"


FLASH_OPTIONS = (
    FlashOption("delta", float, 3e-3, "largest mean Bernoulli KL of an admitted trajectory (Eq. 8)"),
    FlashOption(
        "gate", str, "sequence", "unit that the trust region admits or rejects", ("sequence", "token", "none")
    ),
    FlashOption(
        "aggregation",
        str,
        "sample-mean",
        "how token terms are averaged (Eq. 9)",
        ("sample-mean", "token-mean", "constant-length"),
    ),
    FlashOption("constant_length", int, None, "divisor of constant-length aggregation, in tokens"),
    FlashOption(
        "negative_token_fraction",
        float,
        1.0,
        "share of highest-entropy tokens kept in failures (Appendix C)",
    ),
    FlashOption("importance_correction", bool, True, "weigh tokens by the importance ratio (Eq. 1)"),
    FlashOption(
        "ratio_gradient",
        str,
        "detached",
        "gradient form: Eq. 11, or Appendix A",
        ("detached", "through"),
    ),
    FlashOption("log_ratio_limit", float, None, "numerical clamp of the log-ratio; left out: none"),
    FlashOption("environment", str, None, "environment that our agent acts in"),
    FlashOption("environment_options", str, None, "options of that environment, as a JSON object"),
    FlashOption("max_turns", int, 1, "model turns in one trajectory"),
    FlashOption("max_new_tokens", int, None, "policy tokens in one trajectory, over all its turns"),
    FlashOption("step_timeout_s", float, 30.0, "seconds that one environment step may take"),
)


def add_flash_options(parser: argparse.ArgumentParser) -> None:
    """Add every `--flash.*` option and our two choices to Molt's parser."""
    for option in FLASH_OPTIONS:
        if option.kind is bool:
            pair = argparse.BooleanOptionalAction
            parser.add_argument(f"--{option.dest}", action=pair, default=option.default, help=option.help)
        else:
            parser.add_argument(
                f"--{option.dest}",
                type=option.kind,
                default=option.default,
                choices=option.choices,
                help=option.help,
            )
    for action in parser._actions:
        added = {"actor.loss_mode": LOSS_MODE, "algo.advantage.estimator": ESTIMATOR}.get(action.dest)
        if added and action.choices is not None and added not in action.choices:
            action.choices = [*action.choices, added]
