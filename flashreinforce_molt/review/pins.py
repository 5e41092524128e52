"""Everything that changes numbers, with the revision or version that the recipe means."""

from __future__ import annotations

from dataclasses import dataclass

from flashreinforce_molt.config.experiment import Experiment
from flashreinforce_molt.config.locks import PACKAGES, dataset_revision, lock


@dataclass(frozen=True)
class Pin:
    """Something that changes numbers, with the version that the recipe means; None: unpinned."""

    kind: str
    name: str
    version: str | None
    source: str


def pins_of(experiment: Experiment) -> tuple[Pin, ...]:
    """The model, the data sets, the packages of the environment and, for Molt, those of its stack."""
    config = experiment.config
    pins = []
    if config.model.id is not None:
        source = experiment.settings["model.revision"].source
        pins.append(Pin("model", config.model.id, config.model.revision, source))
    data = [(config.data.id, config.data.revision)]
    data += [
        (suite.get("id"), suite.get("revision"))
        for suite in config.evaluation.suites.values()
        if isinstance(suite, dict)
    ]
    for id, stated in dict.fromkeys(data):
        if id is not None:
            revision = dataset_revision(str(id), stated)
            source = "recipe" if stated else "recipes/locks/datasets.json" if revision else "not resolved yet"
            pins.append(Pin("data", str(id), revision, source))
    for name, entry in lock(PACKAGES).items():
        environments = entry.get("environments")
        if config.environment.name in environments.split() if environments else experiment.engine == "molt":
            pins.append(Pin("package", name, entry["version"], entry["source"]))
    return tuple(pins)
