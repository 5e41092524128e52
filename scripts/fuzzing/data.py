"""Prepared rows and sources of questions: a bad row is named with its number."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.data.prepared import write_table
from flashreinforce_molt.data.records import read_problems
from flashreinforce_molt.data.rows import PreparedRows
from fuzzing.case import ANSWER, REFUSED, attempt, demand, flipped, mangled

BAD_LINES = (
    b"{",
    b"[]",
    b"7",
    b"null",
    b"\xff\xfe",
    b"[" * 50_000,
    b'{"a": NaN}',
    b'{"a": 1' + b"0" * 5000 + b"}",
)
NO_TEXTS = (None, 7, 1.5, True, [], {}, "", "  ", "\ud800", [{}], {"a": 1})


def case(rng: Random, folder: Path) -> str:
    """One file of rows."""
    kind = rng.random()
    if kind < 0.2:
        return _parquet(rng, folder)
    rows = [_row(number) for number in range(rng.randint(2, 4))]
    lines = [json.dumps(row).encode() for row in rows]
    at, must, names = rng.randrange(len(rows)), REFUSED, ""
    if kind < 0.3:
        must = ANSWER
    elif kind < 0.6:
        lines[at], names = rng.choice(BAD_LINES), f"row {at}"
    elif kind < 0.85:
        lines[at], names = json.dumps(_bad_row(rows[at], rng)).encode(), f"row {at}"
    else:
        lines[at], must = mangled(lines[at].decode(), rng).encode("utf-8", "surrogatepass"), None
    path = folder / "rows.jsonl"
    path.write_bytes(rng.choice([b"\n", b"\n\n", b"\r\n"]).join(lines) + b"\n" * rng.randrange(2))
    if rng.random() < 0.3:
        return _problems(path, must, names, rows)
    outcome, tasks = attempt(
        lambda: list(PreparedRows(path)), (DataError,), must=must, names=names or str(path)
    )
    if must == ANSWER:
        demand([task.data["gold"] for task in tasks] == [str(n) for n in range(len(rows))], "other answers")
    return outcome


def _row(number: int) -> dict[str, Any]:
    return {
        "datasource": "dapo",
        "prompt": [{"role": "user", "content": f"What is {number} plus nothing?"}],
        "reward_model": {"ground_truth": str(number), "style": "boxed"},
        "prompt_id": f"dapo-{number}",
    }


def _bad_row(row: dict[str, Any], rng: Random) -> dict[str, Any]:
    bad = rng.choice(NO_TEXTS)
    kind = rng.randrange(5)
    if kind == 0:
        return row | {"prompt": rng.choice([bad, "What?", [3], [{"role": "user"}]])}
    if kind == 1:
        return row | {"prompt": [{"role": "user", "content": bad}]}
    if kind == 2:
        return row | {"reward_model": rng.choice([bad, {}])}
    if kind == 3:
        return row | {"reward_model": {"ground_truth": rng.choice([None, [], {}, "", " ", "\ud800", True])}}
    missing = rng.choice(["prompt", "reward_model"])
    return {key: value for key, value in row.items() if key != missing}


def _problems(path: Path, must: str | None, names: str, rows: list[dict[str, Any]]) -> str:
    """Preparation reads on after a row without question or answer, and names it."""
    outcome, batches = attempt(lambda: list(read_problems([path])), (DataError,), names=str(path))
    if outcome == REFUSED:
        demand(must != ANSWER, "sound rows were refused")
        return outcome
    unusable = [name for batch in batches for name in batch.unusable]
    found = [problem.answer for batch in batches for problem in batch.problems]
    if must == ANSWER:
        demand(not unusable and found == [str(n) for n in range(len(rows))], f"{unusable} {found}")
    demand(sum(batch.rows for batch in batches) == len(found) + len(unusable), "a row is lost without a word")
    demand(
        all(answer.strip().lower() not in ("", "none", "nan", "inf") for answer in found), f"answers {found}"
    )
    return REFUSED if unusable else outcome


def _parquet(rng: Random, folder: Path) -> str:
    sound = _parquet_bytes(folder)
    kind, must = rng.randrange(4), None
    data = sound
    if kind == 0:
        must = ANSWER
    elif kind == 1:
        data, must = sound[: rng.randrange(len(sound))], REFUSED
    elif kind == 2:
        data = flipped(sound, rng)
    else:
        data, must = rng.randbytes(rng.randrange(300)), REFUSED
    path = folder / "rows.parquet"
    path.unlink(missing_ok=True)  # a mapped file must not change under its reader
    path.write_bytes(data)
    outcome, tasks = attempt(lambda: list(PreparedRows(path)), (DataError,), must=must, names=str(path))
    if outcome == ANSWER:
        said = [(task.data["prompt"][0]["content"], task.data["gold"]) for task in tasks]
        demand(said == [(f"What is {n} plus nothing?", str(n)) for n in range(3)], f"other rows: {said}")
    return outcome


@cache
def _parquet_bytes(folder: Path) -> bytes:
    path = folder / "sound.parquet"
    write_table(path, pa.Table.from_pylist([_row(number) for number in range(3)]))
    return path.read_bytes()
