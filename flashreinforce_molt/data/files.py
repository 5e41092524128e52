"""Which files of a folder hold a data set's split."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from flashreinforce_molt.data.errors import DataError

SUFFIXES = (".parquet", ".jsonl", ".json")
"""In the order of preference, where a folder holds the same rows in several formats."""

_SPLITS = ("train", "test", "validation", "valid", "dev")
_NOT_DATA = ("dataset_infos.json", "dataset_info.json", "state.json", "report.json")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})")


def local_files(path: Path, split: str) -> tuple[Path, ...]:
    """Files of a split: `path` itself, or those in the folder.

    Raises DataError when there is nothing to read or the choice is not clear.
    """
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise DataError(f"{path} is no {', '.join(SUFFIXES)} file")
        return (path,)
    if not path.is_dir():
        raise DataError(f"{path} does not exist; give a file or folder that holds the data")
    names = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
    return tuple(path / name for name in split_files(names, split, where=str(path)))


def split_files(names: Sequence[str], split: str, *, where: str) -> list[str]:
    """Names of the files of a split, out of all names in a folder or repository."""
    visible = [name for name in names if not any(part.startswith(".") for part in PurePosixPath(name).parts)]
    usable = [name for name in visible if PurePosixPath(name).name not in _NOT_DATA]
    for suffix in SUFFIXES:
        candidates = sorted(name for name in usable if name.endswith(suffix))
        if candidates:
            break
    else:
        raise DataError(f"{where} holds no {', '.join(SUFFIXES)} file")
    chosen = [name for name in candidates if split in _words(name)]
    if not chosen:
        chosen = [name for name in candidates if not set(_SPLITS) & _words(name)]
    if not chosen:
        raise DataError(f"{where} holds no files of the split {split!r}, only {', '.join(candidates[:5])}")
    _check_shards(chosen, where)
    if len(chosen) > 1 and not all(_SHARD.fullmatch(PurePosixPath(name).stem) for name in chosen):
        raise DataError(f"{where} holds several files, {', '.join(chosen[:5])}; give the one that is meant")
    return chosen


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.lower()))


def _check_shards(names: Sequence[str], where: str) -> None:
    shards = [match for name in names if (match := _SHARD.fullmatch(PurePosixPath(name).stem))]
    for base, total in {(match[1], int(match[3])) for match in shards}:
        found = sum(match[1] == base for match in shards)
        if found != total:
            raise DataError(f"{where} holds {found} of the {total} parts of {base}; the copy is incomplete")
