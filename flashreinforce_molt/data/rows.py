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
from flashreinforce_molt.data.lines import is_text, json_lines, unreadable
from flashreinforce_molt.environments.base import Task
from flashreinforce_molt.shown import shown

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

        # Pages that carry a checksum, as ours do, are checked: a flipped bit would be another question.
        self._table = pyarrow.parquet.read_table(path, memory_map=True, page_checksum_verification=True)
        self._table.validate()
        self._path = path

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        try:
            return self._table.slice(row, 1).to_pylist()[0]
        except Exception as error:  # text that is no UTF-8, a date beyond the calendar, ...
            raise unreadable(f"{self._path} row {row}", error) from None


def _load(path: Path) -> Any:
    if not path.is_file():
        raise DataError(f"{path} does not exist; `flashreinforce-molt prepare` writes it")
    if path.suffix == ".jsonl":
        return [record for _, record in json_lines(path)]
    if path.suffix != ".parquet":
        raise DataError(f"{path} is neither .parquet nor .jsonl")
    try:
        return _ParquetRows(path)
    except ImportError:
        raise DataError(f"reading {path} needs pyarrow: pip install pyarrow") from None
    except Exception as error:  # a damaged file may fail anywhere inside pyarrow, with errors of many kinds
        raise unreadable(path, error) from None


def _task(row: Any, where: str) -> Task:
    if not isinstance(row, Mapping):
        raise DataError(f"{where} is no object with columns")
    prompt = row.get("prompt")
    if not isinstance(prompt, list) or not prompt:
        raise DataError(f"{where}: prompt={shown(prompt)} is no list of messages")
    for message in prompt:
        said = message.get("content") if isinstance(message, Mapping) else None
        if not (is_text(said) and is_text(message.get("role"))):
            raise DataError(
                f"{where}: prompt holds {shown(message)} instead of a message with role and content"
            )
    judged = row.get("reward_model")
    gold = judged.get("ground_truth") if isinstance(judged, Mapping) else None
    if not is_text(gold):
        raise DataError(f"{where}: reward_model.ground_truth={shown(gold)} is no answer")
    for column in ("question", "datasource"):
        if row.get(column) is not None and not isinstance(row[column], str):
            raise DataError(f"{where}: {column}={shown(row[column])} is no text")
    if not isinstance(row.get("prompt_id"), (str, int, type(None))):
        raise DataError(f"{where}: prompt_id={shown(row['prompt_id'])} is neither text nor a whole number")
    if row.get("tools") and not _are_tools(row["tools"]):
        raise DataError(f"{where}: tools={shown(row['tools'])} is no list of tool schemas")
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


def _are_tools(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(tool, Mapping) for tool in value)
