"""The five preparations. Each reads sources, counts what it drops, and writes files and a report below its folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from flashreinforce_molt.data.alfworld_games import choose_games, find_games, games_root
from flashreinforce_molt.data.catalogue import (
    ALFWORLD_ROWS,
    DAPO,
    DAPO_TRAINING_ROWS,
    EVALUATIONS,
    MATH_EVALUATION,
    SANITY_R1,
    THREE_BENCHMARKS,
    DataSet,
)
from flashreinforce_molt.data.contamination import find_overlaps
from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.data.files import SUFFIXES, local_files
from flashreinforce_molt.data.hub import hub_files
from flashreinforce_molt.data.locks import LOCKED_LIST, default_lock_file, read_lock, write_lock
from flashreinforce_molt.data.prepared import write_report, write_rows, write_table
from flashreinforce_molt.data.prompts import math_prompt, tool_prompt
from flashreinforce_molt.data.questions import question_key
from flashreinforce_molt.data.rows import PreparedRows
from flashreinforce_molt.data.selection import Row, as_published, choose, index_questions, list_hash

Report = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What to prepare from where. `sources` and `revisions` go by data set; "" stands for all of them."""

    output: Path
    sources: Mapping[str, Path] = field(default_factory=dict)
    revisions: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    allow_other_counts: bool = False
    lock_file: Path | None = field(default_factory=default_lock_file)
    say: Callable[[str], None] = print


@dataclass(frozen=True)
class _Source:
    files: tuple[Path, ...]
    origin: Report
    pinned: bool
    """It came from the hub at the revision that the lock file holds, or the first one ever."""


def prepare_dapo(request: Request) -> Report:
    """Training questions of qwen_math: distinct, with one answer, chosen by hash."""
    rows, report = _dapo_rows(request)
    report["contamination"] = _contamination(request, {"dapo": rows}, _prepared_evaluations(request))
    _write(request, "dapo", "train", rows, math_prompt)
    return report


def prepare_sanity_r1(request: Request) -> Report:
    """The 1,460 training questions of r1."""
    rows, report = _published_rows(request, SANITY_R1)
    report["contamination"] = _contamination(request, {"sanity_r1": rows}, _prepared_evaluations(request))
    _write(request, "sanity_r1", "train", rows, math_prompt)
    return report


def prepare_math_eval(request: Request) -> Report:
    """The benchmarks of all mathematics recipes; one that fails does not stop the others."""
    report, problems, evaluations = Report(), [], {}
    for dataset in MATH_EVALUATION:
        try:
            evaluations[dataset.name], report[dataset.name] = _published_rows(request, dataset)
        except DataError as error:
            problems.append(str(error))
            continue
        _write(request, "math_eval", dataset.name, evaluations[dataset.name], math_prompt)
    shown = "".join(f"\n  - {problem}" for problem in problems)
    failure = f"{len(problems)} of {len(MATH_EVALUATION)} benchmarks are not prepared:{shown}"
    if not evaluations:
        raise DataError(failure)
    report["evaluations"] = _evaluation_sizes(request, evaluations)
    report["shared_questions"] = _shared_questions(request, evaluations)
    training = {name: rows for name in ("dapo", "sanity_r1") if (rows := _prepared(request, name, "train"))}
    report["contamination"] = _contamination(request, training, evaluations)
    if problems:
        raise DataError(failure)
    return report


def _evaluation_sizes(request: Request, benchmarks: Mapping[str, Sequence[Row]]) -> Report:
    """Questions in each of the sets that recipes evaluate on, where all of its benchmarks are there."""
    sizes = {
        name: sum(len(benchmarks[member.name]) for member in members)
        for name, members in EVALUATIONS.items()
        if all(member.name in benchmarks for member in members)
    }
    for name, size in sizes.items():
        request.say(f"{name}: {', '.join(member.name for member in EVALUATIONS[name])}: {size:,} questions")
    return sizes


def _shared_questions(request: Request, benchmarks: Mapping[str, Sequence[Row]]) -> list[list[str]]:
    """Benchmarks that hold the same question, for each question that several hold."""
    holders: dict[str, list[str]] = {}
    for name, rows in benchmarks.items():
        for key in dict.fromkeys(row.key for row in rows):
            holders.setdefault(key, []).append(name)
    shared = [names for names in holders.values() if len(names) > 1]
    request.say(f"{len(shared):,} questions stand in several benchmarks")
    return shared


def prepare_tools(request: Request) -> Report:
    """The questions of dapo and of three benchmarks, posed to a model that has the Python tool."""
    report = Report()
    training = None if request.sources else _prepared(request, "dapo", "train")
    if training is None:
        training, report["train"] = _dapo_rows(request)
    else:
        report["train"] = _taken_over(request, "dapo", "train", training)
    evaluations = {}
    for dataset in THREE_BENCHMARKS:
        rows = None if request.sources else _prepared(request, "math_eval", dataset.name)
        if rows is None:
            rows, report[dataset.name] = _published_rows(request, dataset)
        else:
            report[dataset.name] = _taken_over(request, "math_eval", dataset.name, rows)
        evaluations[dataset.name] = rows
    report["contamination"] = _contamination(request, {"dapo": training}, evaluations)
    for name, rows in {"train": training, **evaluations}.items():
        _write(request, "tools", name, rows, tool_prompt, with_tools=True)
    return report


def prepare_alfworld(request: Request) -> Report:
    """Lists of games relative to ALFWORLD_DATA."""
    root = games_root(request.sources.get("") or request.sources.get("alfworld"))
    report: Report = {"root": str(root)}
    tables = {}
    for split, wanted in ALFWORLD_ROWS.items():
        games, counts = find_games(root, split)
        if split == "train":
            wanted = request.rows or wanted
            games = choose_games(games, wanted)
        counts.chosen = len(games)
        request.say(
            f"{split}: {counts.trials:,} trials - {counts.sliced_or_movable:,} sliced or movable "
            f"- {counts.other_task_type:,} of other tasks - {counts.without_game_file:,} without a game "
            f"- {counts.unsolvable:,} unsolvable = {counts.games:,} games, {counts.chosen:,} taken"
        )
        _assert_count(request, f"ALFWorld's split {split}", "games", len(games), wanted)
        digest = hashlib.sha256("\n".join(games).encode()).hexdigest()
        report[split] = {**asdict(counts), LOCKED_LIST: digest}
        request.say(f"  list sha256 {digest}")
        tables[split] = _game_table(f"alfworld_{split}", games)
    for split, table in tables.items():
        path = request.output / "alfworld" / f"{split}.parquet"
        write_table(path, table)
        request.say(f"wrote {path}")
    return report


PREPARATIONS: dict[str, Callable[[Request], Report]] = {
    "dapo": prepare_dapo,
    "sanity_r1": prepare_sanity_r1,
    "math_eval": prepare_math_eval,
    "tools": prepare_tools,
    "alfworld": prepare_alfworld,
}


def prepare(name: str, request: Request) -> Path:
    """Run one preparation; returns its report.

    Raises DataError when a source is absent, or not what was published.
    """
    report = PREPARATIONS[name](request)
    return write_report(request.output / name, {"prepared": name, **report})


# Sources


def _source(request: Request, dataset: DataSet) -> _Source:
    local = request.sources.get(dataset.name) or _inside(request.sources.get(""), dataset)
    if local is not None:
        files = local_files(local, dataset.split)
        request.say(f"{dataset.name}: {', '.join(map(str, files[:3]))}{' ...' if len(files) > 3 else ''}")
        return _Source(files, {"from": "local", "files": [str(file) for file in files]}, pinned=False)
    stated = request.revisions.get(dataset.name) or request.revisions.get("")
    locked = read_lock(dataset.id, request.lock_file).get("revision")
    found = hub_files(dataset.id, dataset.split, stated or locked)
    request.say(f"{dataset.name}: {dataset.id} at {found.revision}")
    origin = {
        "from": "hub",
        "id": dataset.id,
        "revision": found.revision,
        "files": [file.name for file in found.files],
    }
    return _Source(
        found.files, origin, pinned=locked in (None, found.revision) and stated in (None, found.revision)
    )


def _inside(folder: Path | None, dataset: DataSet) -> Path | None:
    """What a folder holds for a data set under its name; the folder or file itself where it holds nothing by name."""
    if folder is None:
        return None
    for name in (dataset.name, dataset.id.rpartition("/")[2]):
        for candidate in (folder / name, *(folder / f"{name}{suffix}" for suffix in SUFFIXES)):
            if candidate.exists():
                return candidate
    return folder


# Questions


def _dapo_rows(request: Request) -> tuple[list[Row], Report]:
    source = _source(request, DAPO)
    index = index_questions(source.files)
    rows = choose(index, request.rows or DAPO_TRAINING_ROWS)
    return rows, _account(request, DAPO, source, index.counts, rows, complete=request.rows is None)


def _published_rows(request: Request, dataset: DataSet) -> tuple[list[Row], Report]:
    """The rows of a set whose size is known. Copies are removed, unless the published size counts them."""
    source = _source(request, dataset)
    index = index_questions(source.files)
    counts = index.counts
    usable = counts.rows - counts.unusable
    if dataset.may_repeat and usable == dataset.rows and counts.distinct != usable:
        rows = as_published(index)
        counts.chosen = len(rows)
        request.say(
            f"  {counts.repeated:,} repeated rows and {counts.conflicting_questions:,} questions with several answers "
            f"are kept: {dataset.name} has {dataset.rows:,} rows as published"
        )
    else:
        rows = choose(index, None)
    if index.conflicts and len(rows) != dataset.rows and not request.allow_other_counts:
        first = min(index.place_of(key) for key in index.conflicts)
        raise DataError(
            f"{dataset.name}: {len(index.conflicts)} questions have several answers, the first in "
            f"{source.files[first[0]]} row {first[1]}"
        )
    _assert_count(request, dataset.name, "questions", len(rows), dataset.rows)
    return rows, _account(request, dataset, source, counts, rows, complete=len(rows) == dataset.rows)


def _assert_count(request: Request, what: str, unit: str, found: int, wanted: int | None) -> None:
    if wanted is None or found == wanted:
        return
    message = f"{what} has {found:,} {unit} instead of {wanted:,}"
    if not request.allow_other_counts:
        raise DataError(f"{message}; if that is meant, say --allow-other-counts")
    request.say(f"warning: {message}")


def _account(
    request: Request, dataset: DataSet, source: _Source, counts: Any, rows: Sequence[Row], *, complete: bool
) -> Report:
    """Print the counts, hold the list against the lock, and return what the report says of this set."""
    first = f" (first: {counts.unusable_rows[0]})" if counts.unusable_rows else ""
    request.say(
        f"  {counts.rows:,} rows - {counts.unusable:,} unusable{first} - {counts.repeated:,} repeated "
        f"- {counts.conflicting_questions:,} with conflicting answers = {counts.distinct:,} questions, "
        f"{counts.chosen:,} taken"
    )
    digest = list_hash(rows)
    request.say(f"  list sha256 {digest}")
    if complete:
        _compare_with_lock(request, dataset, source, digest)
    return {"source": source.origin, **asdict(counts), LOCKED_LIST: digest}


def _compare_with_lock(request: Request, dataset: DataSet, source: _Source, digest: str) -> None:
    known = read_lock(dataset.id, request.lock_file).get(LOCKED_LIST)
    if not source.pinned:
        if known:
            request.say(f"  the list {'equals' if known == digest else 'DIFFERS FROM'} the locked one")
        return
    if known not in (None, digest):
        raise DataError(
            f"{dataset.name}: the list of {dataset.id} at {source.origin['revision']} has the hash {digest}, but "
            f"{known} was locked; the download or the code has changed"
        )
    if request.lock_file is None:
        request.say("  not locked: this is no checkout; name a file with --lock to keep revision and hash")
        return
    entry = {
        "revision": source.origin["revision"],
        "source": "named by the hub, recorded by flashreinforce-molt prepare",
        LOCKED_LIST: digest,
    }
    if write_lock(dataset.id, entry, request.lock_file):
        request.say(f"  recorded in {request.lock_file}")


# Prepared files


def _write(
    request: Request,
    folder: str,
    name: str,
    rows: Sequence[Row],
    prompt_of: Callable[[str], list[dict[str, str]]],
    *,
    with_tools: bool = False,
) -> None:
    path = request.output / folder / f"{name}.parquet"
    write_rows(path, folder if name == "train" else name, rows, prompt_of, with_tools=with_tools)
    request.say(f"wrote {path}")


def _prepared(request: Request, folder: str, name: str) -> list[Row] | None:
    """Questions of a file that was prepared before; None where there is none."""
    path = request.output / folder / f"{name}.parquet"
    if not path.is_file():
        return None
    return [
        Row(question_key(task.data["question"]).hex(), task.data["question"], task.data["gold"])
        for task in PreparedRows(path)
    ]


def _prepared_evaluations(request: Request) -> dict[str, list[Row]]:
    found = {dataset.name: _prepared(request, "math_eval", dataset.name) for dataset in MATH_EVALUATION}
    return {name: rows for name, rows in found.items() if rows is not None}


def _taken_over(request: Request, folder: str, name: str, rows: Sequence[Row]) -> Report:
    path = request.output / folder / f"{name}.parquet"
    request.say(f"{name}: {len(rows):,} questions of {path}")
    return {"source": {"from": "prepared", "files": [str(path)]}, LOCKED_LIST: list_hash(rows)}


def _contamination(
    request: Request, training: Mapping[str, Iterable[Row]], evaluations: Mapping[str, Sequence[Row]]
) -> Report:
    """Evaluation questions that stand in training data, printed and listed; nothing is removed."""
    if not training or not evaluations:
        absent = "dapo or sanity_r1" if evaluations else "math_eval"
        request.say(f"contamination: not checked, since {absent} is not prepared in {request.output}")
        return {"checked": False}
    report: Report = {"checked": True}
    for name, rows in training.items():
        overlaps = find_overlaps(rows, evaluations)
        for evaluation, questions in evaluations.items():
            found = [overlap for overlap in overlaps if overlap.evaluation == evaluation]
            exact = sum(overlap.exact for overlap in found)
            request.say(
                f"contamination: of {len(questions):,} {evaluation} questions {exact:,} stand in {name}, "
                f"{len(found) - exact:,} more nearly"
            )
            report[f"{evaluation} in {name}"] = {
                "exact": exact,
                "near": len(found) - exact,
                "rows": [
                    {"evaluation": o.evaluation_row, "training": o.training_row, "share": round(o.share, 3)}
                    for o in found
                ],
            }
    return report


def _game_table(name: str, games: Sequence[str]) -> pa.Table:
    """A row names its game as `ground_truth`; the environment poses it, so the prompt only says which one it is."""
    return pa.table(
        {
            "datasource": [name] * len(games),
            "prompt": [[{"role": "user", "content": f"ALFWorld game {game}"}] for game in games],
            "reward_model": [{"ground_truth": game, "style": "alfworld"} for game in games],
            "prompt_id": [f"{name}-{hashlib.sha256(game.encode()).hexdigest()[:16]}" for game in games],
            "question": list(games),
        }
    )
