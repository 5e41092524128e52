"""Checkpoints: a Hugging Face model directory that also holds everything a resume needs.

A checkpoint is written aside, flushed and renamed, so that a directory under its final name is complete. Its
`state.json` lists the SHA-256 of every other file and ends with its own. Nothing here unpickles.
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

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from flashreinforce_molt.learners import Learner
from flashreinforce_molt.models import Policy
from flashreinforce_molt.rollout.ledger import Ledger
from flashreinforce_molt.shown import shown
from flashreinforce_molt.trajectory import Trajectory, load_trajectories, save_trajectories

FORMAT = 2
_NAME = re.compile(r"update_(\d{6,})")
_STATE, _LEARNER, _WAITING = "state.json", "learner.safetensors", "waiting.safetensors"
_NEEDED = ("config.json", _LEARNER)


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
        try:
            return load_trajectories(file) if file.exists() else []
        except ValueError as error:
            raise CheckpointError(f"{error}; remove the checkpoint to go on from the one before") from error

    def restore(self, learner: Learner) -> None:
        """Give a learner of the same model its optimizer's state and its update count back."""
        try:
            learner.load_state(load_file(self.path / _LEARNER), self.state.update)
        except (SafetensorError, LookupError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{self.path / _LEARNER} does not fit this model and learner ({type(error).__name__}: {error}); "
                "resume with the model and engine that wrote it"
            ) from error


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
    directory.mkdir(0o755, exist_ok=True)
    final = directory / f"update_{state.update:06d}"
    aside = directory / f".{final.name}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(0o755)
    try:
        policy.model.save_pretrained(aside, safe_serialization=True)
        policy.tokenizer.save_pretrained(aside)
        save_file(learner.state_tensors(), aside / _LEARNER)
        if waiting:
            save_trajectories(aside / _WAITING, waiting)
        files = {path.name: _sha256(path) for path in sorted(aside.iterdir())}
        content = {"format": FORMAT, **asdict(state), "files": files}
        content["sha256"] = _signature(content)
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
            raise CheckpointError(
                f"{path} has format {shown(content['format'])}, this version reads {FORMAT}"
            )
        if content.pop("sha256", None) != _signature(content):
            raise CheckpointError(f"{path / _STATE} does not have the checksum that it states")
        _verify_files(path, content["files"])
        state = RunState(
            **{name: content[name] for name in ("update", "position", "ledger", "wall_s")},
        )
        if f"update_{state.update:06d}" != path.name:
            raise CheckpointError(f"{path} holds update {state.update}; it was renamed")
        Ledger.from_state(state.ledger)
        return state
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _verify_files(path: Path, digests: dict[str, str]) -> None:
    """Every file as it was written and no other, since transformers would read whatever lies there."""
    for name in (*_NEEDED, *digests):
        if name not in digests or Path(name).name != name:
            raise CheckpointError(f"{path / _STATE} must list {shown(name)} as a file beside it")
        if _sha256(path / name) != digests[name]:
            raise CheckpointError(f"{path / name} does not have the checksum that {_STATE} lists")
    present = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    if foreign := sorted(present - digests.keys() - {_STATE}):
        raise CheckpointError(
            f"{path} holds {shown(foreign[0])}, which was not written with it; remove that file"
        )


def _signature(content: dict[str, Any]) -> str:
    """SHA-256 of what a state says: a flipped digit of it would otherwise be another state."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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
