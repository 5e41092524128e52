"""From physical rows to distinct questions, and from those to the ones that a run trains on; every step counted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.data.questions import answer_key, bare_question, question_key
from flashreinforce_molt.data.records import Problem, read_problems

_CACHED_QUESTIONS = 50_000
_NAMED_ROWS = 5


@dataclass(frozen=True)
class Row:
    """A question as it is trained or evaluated on."""

    key: str
    question: str
    answer: str


@dataclass
class Counts:
    """What became of the rows of a source; each number is printed and reported."""

    rows: int = 0
    unusable: int = 0
    repeated: int = 0
    conflicting_questions: int = 0
    distinct: int = 0
    chosen: int = 0
    unusable_rows: list[str] = field(default_factory=list)
    """The first few, named."""


@dataclass
class Index:
    """The distinct questions of some files, without their text: it fits into memory whatever they are."""

    files: tuple[Path, ...]
    counts: Counts
    first: dict[bytes, bytes]
    """Key of a question -> key of its answer, then file and row where it stands first: 24 bytes, see `place_of`."""
    conflicts: set[bytes]
    """Keys of questions with more than one answer."""

    def place_of(self, key: bytes) -> tuple[int, int]:
        """File and row where a question stands first."""
        place = self.first[key]
        return int.from_bytes(place[8:16], "big"), int.from_bytes(place[16:], "big")


def index_questions(files: Sequence[Path]) -> Index:
    """One pass over the files."""
    index = Index(tuple(files), Counts(), {}, set())
    counts, first, conflicts = index.counts, index.first, index.conflicts
    keys: dict[str, bytes] = {}
    for batch in read_problems(files):
        counts.rows += batch.rows
        unusable = batch.unusable
        if len(keys) > _CACHED_QUESTIONS:
            keys.clear()
        for problem in batch.problems:
            key = keys.get(problem.question)
            if key is None:
                key = keys[problem.question] = question_key(problem.question)
            if not key:  # only a template
                unusable += [f"{files[problem.file].name} row {problem.row}: no question"] * problem.times
                continue
            answer = answer_key(problem.answer)
            here = answer + problem.file.to_bytes(8, "big") + problem.row.to_bytes(8, "big")
            if first.setdefault(key, here)[:8] != answer:
                conflicts.add(key)
        counts.unusable += len(unusable)
        counts.unusable_rows += unusable[: _NAMED_ROWS - len(counts.unusable_rows)]
    counts.conflicting_questions = len(conflicts)
    counts.distinct = len(first) - len(conflicts)
    counts.repeated = counts.rows - counts.unusable - len(first)
    return index


def choose(index: Index, rows: int | None) -> list[Row]:
    """Questions with one answer: the first `rows` by their key, in that order; all of them in file order for None.

    Raises DataError when there are fewer.
    """
    agreed = [key for key in index.first if key not in index.conflicts]
    if rows is not None:
        if len(agreed) < rows:
            raise DataError(
                f"only {len(agreed):,} distinct questions with one answer, fewer than the {rows:,} that are wanted "
                f"(of {index.counts.rows:,} rows); give another source, or fewer with --rows"
            )
        agreed = sorted(agreed)[:rows]
    places = {index.place_of(key): key for key in agreed}
    found = {
        places[problem.file, problem.row]: problem
        for batch in read_problems(index.files, only=places)
        for problem in batch.problems
        if (problem.file, problem.row) in places
    }
    index.counts.chosen = len(agreed)
    return [_row(key, found[key]) for key in agreed]


def as_published(index: Index) -> list[Row]:
    """Every row in file order, repeated ones too, for a set whose published size counts them."""
    return [
        _row(question_key(problem.question), problem)
        for batch in read_problems(index.files)
        for problem in batch.problems
        if question_key(problem.question)
        for _ in range(problem.times)
    ]


def list_hash(rows: Sequence[Row]) -> str:
    """SHA-256 over the questions and answers of a list, in its order; two equal lists train the same thing."""
    lines = "\n".join(f"{row.key} {answer_key(row.answer).hex()}" for row in rows)
    return hashlib.sha256(lines.encode()).hexdigest()


def _row(key: bytes, problem: Problem) -> Row:
    return Row(key.hex(), bare_question(problem.question), problem.answer)
