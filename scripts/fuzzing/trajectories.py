"""Files of trajectories: truncated, altered, foreign, or truthfully signed with a false content."""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save

from flashreinforce_molt import Trajectory
from flashreinforce_molt.trajectory import load_trajectories, save_trajectories
from flashreinforce_molt.trajectory.storage import checksum
from fuzzing.case import ANSWER, REFUSED, STRANGE_VALUES, attempt, demand, flipped

DEEP = "[" * 50_000
WRONG_ARRAYS = {
    "tokens": (np.float32, np.bool_),
    "action_mask": (np.uint8, np.int64, np.float32),
    "behavior_log_probs": (np.bool_,),
    "policy_versions": (np.float64, np.bool_),
}


@cache
def _template(folder: Path, count: int) -> tuple[bytes, dict[str, np.ndarray], dict[str, str]]:
    path = folder / f"template_{count}"
    save_trajectories(path, [sample(number) for number in range(count)])
    with safe_open(path, "numpy") as file:
        header = file.metadata()
    return path.read_bytes(), load_file(path), header


def sample(number: int) -> Trajectory:
    return Trajectory(
        trajectory_id=number,
        prompt_id=f"prompt {number}",
        tokens=[5, 6, 7 + number],
        action_mask=[False, True, True],
        behavior_log_probs=[-0.5, -1.25],
        policy_versions=[1, number + 1],
        reward=0.5 * number,
        failed=bool(number % 2),
        finish_reason="stop",
        finished_version=number + 1,
        info={"turns": number},
    )


def case(rng: Random, folder: Path) -> str:
    """One file to load."""
    count = rng.randint(1, 3)
    data, arrays, header = _template(folder, count)
    must: str | None = REFUSED
    kind = rng.randrange(8)
    if kind == 0:
        must = ANSWER
    elif kind == 1:
        data = data[: rng.randrange(len(data))]
    elif kind == 2:
        data = flipped(data, rng)
    elif kind == 3:
        at = rng.randrange(len(data))
        data = data[:at] + rng.randbytes(rng.randint(1, 20)) + data[at:]
    elif kind == 4:
        data = rng.choice(
            [rng.randbytes(rng.randrange(200)), struct.pack("<Q", rng.getrandbits(64)) + data[8:]]
        )
    elif kind == 5:
        data = _resigned(*_other_arrays(arrays, rng), header)
    elif kind == 6:
        records, must = _other_records(json.loads(header["trajectories"]), rng)
        data = _resigned(arrays, {}, {**header, "trajectories": records})
    else:
        name = rng.choice(["format", "version", "sha256"])
        data = save(arrays, {**header, name: str(rng.choice(["", "9", "\x00", "a" * 5000]))})
    path = folder / "sample"
    path.write_bytes(data)
    outcome, loaded = attempt(lambda: load_trajectories(path), (ValueError,), must=must, names=str(path))
    if must == ANSWER:
        same = [(t.trajectory_id, t.tokens.tolist(), t.reward, t.info["turns"]) for t in loaded]
        demand(same == [(n, [5, 6, 7 + n], 0.5 * n, n) for n in range(count)], f"loaded {same}")
    return outcome


def _resigned(arrays: dict[str, Any], changed: dict[str, Any], header: dict[str, str]) -> bytes:
    arrays, header = {**arrays, **changed}, {**header}
    header.pop("sha256")
    return save(arrays, {**header, "sha256": checksum(header, arrays)})


def _other_arrays(arrays: dict[str, np.ndarray], rng: Random) -> tuple[dict, dict]:
    name = rng.choice([*WRONG_ARRAYS])
    array = arrays[name]
    kind = rng.randrange(4)
    if kind == 0:
        return arrays, {name: array.astype(rng.choice(WRONG_ARRAYS[name]))}
    if kind == 1:
        return arrays, {
            name: rng.choice([array[:-1], np.append(array, array[:1]), array[:0], array[:, None]])
        }
    if kind == 2:
        bad = np.array(rng.choice([np.nan, np.inf, -np.inf, 0.5]), np.float32)
        return arrays, {"behavior_log_probs": np.append(arrays["behavior_log_probs"][1:], bad)}
    return arrays, {rng.choice(["tokens", "policy_versions"]): -1 - arrays["tokens"]}


def _other_records(records: list[dict[str, Any]], rng: Random) -> tuple[str, str | None]:
    kind, record = rng.randrange(4), rng.choice(records)
    if kind == 0:
        return rng.choice(
            ["", "{", "null", "7", '"a"', "[]", "[3]", "[[]]", "[{}]", DEEP, "[1e999]", "\x00"]
        ), REFUSED
    if kind == 1:
        record["length"] = rng.choice([0, -1, -2, 1.5, True, "3", None, 10**400, [], 2])
        return json.dumps(records), REFUSED
    if kind == 2:
        record["info"] = {"fact": rng.choice([None, [], {}, float("nan"), float("inf"), 10**400])}
        return json.dumps(records), REFUSED
    name = rng.choice([*record, "foreign", "tokens"])
    record[name] = rng.choice(STRANGE_VALUES)
    return json.dumps(records), None
