"""Prepared rows as tasks: in an order that the seed fixes, the same again after a restart, one pass after the other."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.environments.base import Task

_CHECKED_AT_ONCE = 100_000


class PreparedRows(Sequence[Task]):
    """Rows of a prepared .parquet or .jsonl file, in file order.

    A task's data hold `prompt` (messages), `gold`, `question`, `datasource`, and `tools` where the row has some. Rows
    that cannot be trained on raise DataError with their number: at once in files of up to 100,000 rows, else when
    they are read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._rows = _load(self.path)
        if not len(self._rows):
            raise DataError(f"{self.path} has no rows")
        if len(self._rows) <= _CHECKED_AT_ONCE:
            for _ in self:
                pass

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} in {self.path}")
        row %= len(self)
        return _task(self._rows[row], f"{self.path} row {row}")

    def __iter__(self) -> Iterator[Task]:
        return (self[row] for row in range(len(self)))

    def training_order(self, seed: int) -> TrainingOrder:
        """All rows once in a random order, then once in another, without end."""
        return TrainingOrder(self, seed)


class TrainingOrder:
    """Task at every position of a run: position -> pass and place in it, so a run resumes at any position."""

    def __init__(self, rows: Sequence[Task], seed: int) -> None:
        self.rows, self.seed = rows, seed
        self._order = lru_cache(maxsize=2)(self._order_of_pass)

    def __getitem__(self, position: int) -> Task:
        if position < 0:
            raise IndexError(f"position {position} of a data order is negative")
        number, place = divmod(position, len(self.rows))
        return self.rows[self._order(number)[place]]

    def _order_of_pass(self, number: int) -> list[int]:
        order = list(range(len(self.rows)))
        random.Random(f"{self.seed} {number}").shuffle(order)
        return order


class _ParquetRows:
    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._table = pyarrow.parquet.read_table(path, memory_map=True)

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self._table.slice(row, 1).to_pylist()[0]


def _load(path: Path) -> Any:
    if not path.is_file():
        raise DataError(f"{path} does not exist; `flashreinforce-molt prepare` writes it")
    if path.suffix == ".jsonl":
        rows = []
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(line for line in stream if line.strip()):
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise DataError(f"{path} row {number} is no JSON: {error}") from None
        return rows
    if path.suffix != ".parquet":
        raise DataError(f"{path} is neither .parquet nor .jsonl")
    try:
        return _ParquetRows(path)
    except ImportError:
        raise DataError(f"reading {path} needs pyarrow: pip install pyarrow") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _task(row: Any, where: str) -> Task:
    if not isinstance(row, Mapping):
        raise DataError(f"{where} is no object with columns")
    prompt = row.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        raise DataError(f"{where}: prompt={prompt!r} is no list of messages")
    for message in prompt:
        said = message.get("content") if isinstance(message, Mapping) else None
        if not (isinstance(said, str) and said.strip() and isinstance(message.get("role"), str)):
            raise DataError(f"{where}: prompt holds {message!r} instead of a message with role and content")
    judged = row.get("reward_model")
    gold = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    if not isinstance(gold, str) or not gold.strip():
        raise DataError(f"{where}: reward_model.ground_truth={gold!r} is no answer")
    data: dict[str, Any] = {
        "prompt": [{"role": message["role"], "content": message["content"]} for message in prompt],
        "gold": gold,
        "question": row.get("question") or prompt[-1]["content"],
        "datasource": row.get("datasource") or "default",
    }
    if row.get("tools"):
        data["tools"] = row["tools"]
    prompt_id = row.get("prompt_id") or hashlib.sha256(json.dumps(data["prompt"]).encode()).hexdigest()[:16]
    return Task(str(prompt_id), data)
