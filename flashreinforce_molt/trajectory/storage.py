"""Trajectories in one plain file: safetensors arrays, and the rest as JSON in its header."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from flashreinforce_molt.shown import shown
from flashreinforce_molt.trajectory.record import Trajectory

FORMAT = "flashreinforce-trajectories"
VERSION = "2"
_ARRAYS = {
    "tokens": np.int64,
    "action_mask": np.bool_,
    "behavior_log_probs": np.float32,
    "policy_versions": np.int64,
}
_SCALARS = (
    "trajectory_id",
    "prompt_id",
    "reward",
    "failed",
    "finish_reason",
    "finished_version",
    "info",
    "row_lengths",
)


def save_trajectories(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> None:
    """Write all trajectories to one file; a reader sees the old file or the whole new one."""
    trajectories, path = list(trajectories), Path(path)
    arrays = {
        name: np.concatenate(
            [np.empty(0, dtype), *(getattr(trajectory, name) for trajectory in trajectories)]
        )
        for name, dtype in _ARRAYS.items()
    }
    records = [
        {name: getattr(trajectory, name) for name in _SCALARS} | {"length": trajectory.tokens.size}
        for trajectory in trajectories
    ]
    header = {"format": FORMAT, "version": VERSION, "trajectories": json.dumps(records)}
    header["sha256"] = checksum(header, arrays)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            file.write(save(arrays, header))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def load_trajectories(path: str | os.PathLike[str]) -> list[Trajectory]:
    """Read what `save_trajectories` wrote, validated anew; a damaged or foreign file is refused by name."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "Is a directory, not a file of trajectories", os.fspath(path))
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ValueError(
                    f"not a trajectory file (format {shown(header.get('format'))}, expected {FORMAT!r})"
                )
            if header.get("version") != VERSION:
                raise ValueError(
                    f"version {shown(header.get('version'))} of the format, this release reads {VERSION!r}"
                )
            if odd := sorted(_ARRAYS.keys() ^ set(file.keys())):
                fault = "is missing" if odd[0] in _ARRAYS else "is no part of the format"
                raise ValueError(f"the array {shown(odd[0])} {fault}")
            arrays = {name: file.get_tensor(name) for name in _ARRAYS}
            if header.pop("sha256", None) != checksum(header, arrays):
                raise ValueError("does not have the checksum that its header states: it is damaged")
            return _trajectories(json.loads(header["trajectories"]), arrays)
    except (SafetensorError, ValueError) as fault:
        raise ValueError(f"{os.fspath(path)}: {fault}") from fault
    except OSError as fault:
        if os.fspath(path) in str(fault):
            raise
        raise type(fault)(f"{os.fspath(path)}: {fault}") from fault
    except (LookupError, TypeError, AttributeError, RecursionError) as fault:
        raise ValueError(f"{os.fspath(path)}: damaged header ({type(fault).__name__}: {fault})") from fault


def checksum(header: dict[str, str], arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 of everything that a file says: a flipped bit of a token would otherwise be another token."""
    digest = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name in _ARRAYS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()


def _trajectories(records: list[dict[str, Any]], arrays: dict[str, np.ndarray]) -> list[Trajectory]:
    if not isinstance(records, list):
        raise ValueError(f"its records are {shown(records)}, not a list")
    trajectories: list[Trajectory] = []
    token = sampled = 0
    for record in records:
        length = record.pop("length")
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ValueError(f"record {len(trajectories)} has length {shown(length)}, not a number of tokens")
        tokens = slice(token, token := token + length)
        mask = arrays["action_mask"][tokens]
        policy = slice(sampled, sampled := sampled + int(np.count_nonzero(mask)))
        trajectories.append(
            Trajectory(
                **record,
                tokens=arrays["tokens"][tokens],
                action_mask=mask,
                behavior_log_probs=arrays["behavior_log_probs"][policy],
                policy_versions=arrays["policy_versions"][policy],
            )
        )
    for name, used in zip(_ARRAYS, (token, token, sampled, sampled), strict=True):
        if arrays[name].size != used:
            raise ValueError(f"{name} holds {arrays[name].size} values, its records {used}")
    return trajectories
