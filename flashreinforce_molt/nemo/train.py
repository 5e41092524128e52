"""A recipe as a hydra experiment, run by NeMo's own `hydra_runner`.

    python scripts/train_nemo.py recipe=quickstart output=runs/quickstart settings.train.updates=100

Every setting of the catalogue can be named under `settings`, on the command line or in a YAML file
(`--config-path DIR --config-name FILE`, see docs/nemo.md). Hydra refuses a name that does not exist; our own checks refuse the rest.
"""

from __future__ import annotations

import sys
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from nemo.core.config import hydra_runner
from omegaconf import MISSING, DictConfig, OmegaConf

from flashreinforce_molt.cli import train_main
from flashreinforce_molt.config.catalogue import catalogue

EXPERIMENT = "flashreinforce"
"""The name by which a YAML file includes the schema: `defaults: [flashreinforce, _self_]`."""

FLAGS = ("resume", "accept_changes", "dry_run")


def schema() -> DictConfig:
    """What an experiment may say: the request of `scripts/train_molt.py`, and every setting, missing unless given."""
    config = OmegaConf.create(
        {
            "recipe": MISSING,
            "variants": [],
            "engine": None,
            "output": None,
            **dict.fromkeys(FLAGS, False),
            "settings": {},
        }
    )
    for name in catalogue():
        OmegaConf.update(config, f"settings.{name}", MISSING)
    return config


def arguments(config: DictConfig) -> list[str]:
    """The command line of `scripts/train_molt.py` that asks for the same."""
    words = ["--recipe", config.recipe]
    for variant in config.variants:
        words += ["--variant", variant]
    for name in ("engine", "output"):
        if config[name] is not None:
            words += [f"--{name}", config[name]]
    words += [f"--{flag.replace('_', '-')}" for flag in FLAGS if config[flag]]
    for name in catalogue():
        node = OmegaConf.select(config, f"settings.{name}", throw_on_missing=False, default=MISSING)
        if node != MISSING:
            words += ["--set", f"{name}={_written(node)}"]
    return words


def _written(value: Any) -> str:
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=10**9).removesuffix("...\n").strip()


ConfigStore.instance().store(name=EXPERIMENT, node=schema())


@hydra_runner(config_name=EXPERIMENT)
def main(config: DictConfig) -> None:
    """Run what the experiment asks for; the exit code is that of `scripts/train_molt.py`."""
    sys.exit(train_main(arguments(config)))
