"""`--replay-batch FILE`: the update that was not finite once more, with the weights that were saved beside the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.experiment import Experiment
from flashreinforce_molt.learners.torch_learner import NonFiniteUpdateError, TorchLearner
from flashreinforce_molt.models import load_policy
from flashreinforce_molt.nonfinite import RECORD_FILE
from flashreinforce_molt.trajectory import TrajectoryBatch, load_trajectories

REPRODUCED, FINITE = 1, 0


def replay(path: Path, experiment: Experiment) -> int:
    """Print loss, gradient norm and the first tensor that is not finite; 1 when there is one, 0 when all are finite.

    Runs the plain torch learner, whichever engine trained. Nothing is written and no optimizer state is needed: the
    step that a finite update would take is forgotten with the process. Raises SettingError when a file is missing.
    """
    disable_progress_bar()
    config = experiment.config
    record = _record(path)
    version = record["weights_version"]
    if not list(path.parent.glob("model*.safetensors")):
        raise SettingError(
            f"{path.parent} no longer holds the weights of version {version}: they are kept beside the newest "
            f"checkpoint.keep={config.checkpoint.keep} batches"
        )
    batch = TrajectoryBatch(load_trajectories(path))
    torch.set_num_threads(config.engine.threads)
    torch.use_deterministic_algorithms(config.engine.deterministic)
    policy = load_policy(path.parent, config.model, device=config.engine.device)
    learner = TorchLearner(policy.model, config)
    learner.updates_done = version
    print(f"{len(batch)} trajectories of {path}, weights version {version} beside them")
    print(f"the run said: {record['error']}")
    try:
        result = learner.update(batch)
    except NonFiniteUpdateError as error:
        print(f"reproduced: {error}")
        return REPRODUCED
    print(
        f"finite: loss {result.loss:.6g}, gradient norm {result.grad_norm:.6g}; no tensor is NaN or infinite"
    )
    return FINITE


def _record(path: Path) -> dict[str, Any]:
    beside = path.parent / RECORD_FILE
    try:
        content = json.loads(beside.read_text("utf-8"))
        if not isinstance(content["weights_version"], int) or not isinstance(content["error"], str):
            raise ValueError("its values have other types")
        return content
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SettingError(
            f"--replay-batch {path}: {beside.name} beside it cannot be read ({error}); give the batch.safetensors "
            "under nonfinite/ in the run directory"
        ) from error
