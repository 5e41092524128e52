"""Checkpoints: a Hugging Face model directory that also holds everything a resume needs.

A checkpoint is written aside, flushed and renamed, so that a directory under its final name is complete. Its
`state.json` lists the SHA-256 of every other file. Nothing here unpickles.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from flashreinforce_molt.learners import Learner
from flashreinforce_molt.models import Policy
from flashreinforce_molt.trajectory import Trajectory, load_trajectories, save_trajectories

FORMAT = 1
_NAME = re.compile(r"update_(\d{6,})")
_STATE, _LEARNER, _WAITING = "state.json", "learner.safetensors", "waiting.safetensors"


class CheckpointError(ValueError):
    """A checkpoint is damaged or none can be used; the message names the file and what is wrong."""


@dataclass(frozen=True)
class RunState:
    """What a run is beside its weights, optimizer and waiting trajectories."""

    update: int
    position: int
    ledger: dict[str, Any]
    wall_s: float


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    path: Path
    state: RunState

    def waiting(self) -> list[Trajectory]:
        """Trajectories that were finished and not yet trained."""
        file = self.path / _WAITING
        return load_trajectories(file) if file.exists() else []

    def restore(self, learner: Learner) -> None:
        """Give a learner of the same model its optimizer's state and its update count back."""
        learner.load_state(load_file(self.path / _LEARNER), self.state.update)


def save_checkpoint(
    directory: Path,
    policy: Policy,
    learner: Learner,
    state: RunState,
    waiting: Sequence[Trajectory],
    *,
    keep: int,
) -> Path:
    """Write `directory/update_NNNNNN` and delete all but the newest `keep`; returns the new path."""
    directory.mkdir(exist_ok=True)
    final = directory / f"update_{state.update:06d}"
    aside = directory / f".{final.name}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        policy.model.save_pretrained(aside, safe_serialization=True)
        policy.tokenizer.save_pretrained(aside)
        save_file(learner.state_tensors(), aside / _LEARNER)
        if waiting:
            save_trajectories(aside / _WAITING, waiting)
        files = {path.name: _sha256(path) for path in sorted(aside.iterdir())}
        content = {"format": FORMAT, **asdict(state), "files": files}
        (aside / _STATE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for path in [*aside.iterdir(), aside]:
            _fsync(path)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        _fsync(directory)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for old in _complete(directory)[keep:]:
        shutil.rmtree(old)
    return final


def newest_checkpoint(directory: Path, on_damage: Callable[[str], None]) -> Checkpoint:
    """The newest checkpoint that is whole; damaged ones are reported through `on_damage` and passed over.

    Raises CheckpointError when none is left.
    """
    for path in _complete(directory):
        try:
            return Checkpoint(path, _verify(path))
        except CheckpointError as error:
            on_damage(f"{error}; trying the one before")
    raise CheckpointError(f"{directory} holds no usable checkpoint; start a new run with another --output")


def _complete(directory: Path) -> list[Path]:
    """Checkpoint directories, newest first."""
    found = [path for path in directory.glob("update_*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.partition("_")[2]), reverse=True)


def _verify(path: Path) -> RunState:
    try:
        content = json.loads((path / _STATE).read_text("utf-8"))
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {content['format']}, this version reads {FORMAT}")
        for name, digest in content["files"].items():
            if _sha256(path / name) != digest:
                raise CheckpointError(f"{path / name} does not have the checksum that {_STATE} lists")
        return RunState(
            update=int(content["update"]),
            position=int(content["position"]),
            ledger=dict(content["ledger"]),
            wall_s=float(content["wall_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
