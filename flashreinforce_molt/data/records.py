"""Questions and answers out of .parquet, .jsonl and .json files of any schema that we met, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.data.lines import is_unicode, json_lines, parsed, unreadable
from flashreinforce_molt.shown import shown

QUESTION_COLUMNS = ("problem", "question", "Problem", "Question")
ANSWER_COLUMNS = ("final_answer", "answer", "Answer")

_BATCH_ROWS = 65_536
_MAX_JSON_BYTES = 1 << 29


@dataclass(frozen=True)
class Problem:
    """A question and its answer; `row` counts from 0 in its file, `times` how often its batch holds the pair."""

    question: str
    answer: str
    file: int
    row: int
    times: int = 1


@dataclass
class Batch:
    """What some rows of a file hold: each different pair of question and answer once, at its first row."""

    rows: int
    problems: list[Problem]
    unusable: list[str] = field(default_factory=list)
    """The rows without a question or an answer, named."""


def read_problems(files: Sequence[Path], only: Collection[tuple[int, int]] | None = None) -> Iterator[Batch]:
    """Everything in the files, a batch at a time; with `only`, parts without those (file, row) may be left out."""
    for number, path in enumerate(files):
        wanted = None if only is None else {row for file, row in only if file == number}
        if wanted is not None and not wanted:
            continue
        try:
            yield from _READERS[path.suffix](path, number, wanted)
        except DataError:
            raise
        except Exception as error:  # a damaged file fails anywhere inside pyarrow, in many ways
            raise unreadable(path, error) from error


def _read_parquet(path: Path, number: int, wanted: Collection[int] | None) -> Iterator[Batch]:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        question, answer = _columns_of(path, file.schema_arrow.names)
        start = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if wanted is None or any(start <= row < start + rows for row in wanted):
                offset = start
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[question, answer]):
                    yield _parquet_batch(batch, path, number, offset)
                    offset += batch.num_rows
            start += rows


def _parquet_batch(batch: pa.RecordBatch, path: Path, number: int, offset: int) -> Batch:
    """Repeated pairs are found by Arrow, so that Python looks at each once."""
    table = pa.table(
        {
            "question": _texts(batch.column(0), _question_text),
            "answer": _texts(batch.column(1), _answer_text),
            "row": pa.array(range(offset, offset + batch.num_rows), pa.int64()),
        }
    )
    pairs = table.group_by(["question", "answer"]).aggregate([("row", "min"), ("row", "count")]).to_pydict()
    result = Batch(batch.num_rows, [])
    for question, answer, row, count in sorted(
        zip(pairs["question"], pairs["answer"], pairs["row_min"], pairs["row_count"], strict=True),
        key=lambda pair: pair[2],
    ):
        if question and answer:
            result.problems.append(Problem(question, answer, number, row, count))
        else:
            again = f" and {count - 1} more" if count > 1 else ""
            what = "answer" if question else "question"
            result.unusable += [f"{path.name} row {row}{again}: no {what}"] * count
    return result


def _texts(column: pa.Array, text_of: Any) -> pa.Array:
    """One text for each row: at Arrow's speed for the usual layouts, value by value for the others."""
    if pa.types.is_struct(column.type) and column.type.get_field_index("ground_truth") >= 0:
        column = pc.struct_field(column, "ground_truth")
    if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
        one_message = pc.all(pc.equal(pc.list_value_length(column), 1)).as_py() and column.null_count == 0
        inner, messages = column.type.value_type, column.flatten()
        if one_message and min(inner.get_field_index("content"), inner.get_field_index("role")) >= 0:
            of_user = pc.all(pc.equal(pc.struct_field(messages, "role"), "user"), skip_nulls=False).as_py()
            column = pc.struct_field(messages, "content") if of_user else column
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pc.utf8_trim_whitespace(column).cast(pa.large_string())
    return pa.array([text_of(value) for value in column.to_pylist()], pa.large_string())


def _read_lines(path: Path, number: int, wanted: Collection[int] | None) -> Iterator[Batch]:
    batch = Batch(0, [])
    for row, record in json_lines(path):
        _add(batch, record, path, number, row)
        if batch.rows == _BATCH_ROWS:
            yield batch
            batch = Batch(0, [])
    yield batch


def _read_json(path: Path, number: int, wanted: Collection[int] | None) -> Iterator[Batch]:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise DataError(f"{path} is too large for one JSON document; give it as .jsonl or .parquet")
    try:
        records = parsed(path.read_bytes(), str(path))
    except DataError:  # one object on each line, in spite of the name
        yield from _read_lines(path, number, wanted)
        return
    if isinstance(records, dict):
        records = next((value for value in records.values() if isinstance(value, list)), [records])
    if not isinstance(records, list):
        raise DataError(f"{path} holds {shown(records)}, not a list of rows")
    batch = Batch(0, [])
    for row, record in enumerate(records):
        _add(batch, record, path, number, row)
    yield batch


_READERS = {".parquet": _read_parquet, ".jsonl": _read_lines, ".json": _read_json}


def _add(batch: Batch, record: Any, path: Path, number: int, row: int) -> None:
    if not isinstance(record, Mapping):
        raise DataError(f"{path} row {row} is no object with columns")
    question_column, answer_column = _columns_of(path, list(record))
    question, answer = _question_text(record[question_column]), _answer_text(record[answer_column])
    batch.rows += 1
    if question and answer:
        batch.problems.append(Problem(question, answer, number, row))
    else:
        batch.unusable.append(f"{path.name} row {row}: no {'answer' if question else 'question'}")


def _columns_of(path: Path, names: Sequence[str]) -> tuple[str, str]:
    """Names of the columns with the question and with the answer."""
    if "prompt" in names and "reward_model" in names:
        return "prompt", "reward_model"
    question = next((name for name in QUESTION_COLUMNS if name in names), None)
    answer = next((name for name in ANSWER_COLUMNS if name in names), None)
    if question is None or answer is None:
        raise DataError(
            f"{path} has the columns {', '.join(map(shown, names[:40]))}; needed are prompt and reward_model, or one of "
            f"{', '.join(QUESTION_COLUMNS)} and one of {', '.join(ANSWER_COLUMNS)}"
        )
    return question, answer


def _question_text(value: Any) -> str | None:
    """Text of a question: itself, or the content of the one message that a user says."""
    if isinstance(value, list):
        said = [
            message.get("content")
            for message in value
            if isinstance(message, Mapping) and message.get("role") == "user"
        ]
        value = said[0] if len(said) == 1 else None
    return value.strip() if isinstance(value, str) and is_unicode(value) else None


def _answer_text(value: Any) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("ground_truth")
    if isinstance(value, list):
        parts = [_one_answer(part) for part in value]
        return None if None in parts else ", ".join(map(str, parts))
    return _one_answer(value)


def _one_answer(value: Any) -> str | None:
    """A text or a finite number; a table, a flag or nothing is no answer that could be graded."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = int(value) if value.is_integer() else value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value).strip()
    return text if is_unicode(text) else None
