"""Which games there are: lists by split or prepared file, relative to the folder that ALFWORLD_DATA names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.data import DataError, PreparedRows
from flashreinforce_molt.data.alfworld_games import choose_games, find_games, games_root
from flashreinforce_molt.environments.base import EpisodeLost, Task

SPLITS = ("train", "valid_seen", "valid_unseen")
VARIABLE = "ALFWORLD_DATA"


def games_folder(given: str | None) -> Path:
    """The folder that games are named relative to: `given`, else what ALFWORLD_DATA names.

    Raises SettingError that says how to get the games.
    """
    try:
        return games_root(Path(given).expanduser() if given else None)
    except DataError as error:
        raise SettingError(
            f"environment.name=alfworld: {error}; or make small ones with scripts/build_alfworld_games.py"
        ) from None


def tasks_of(root: Path, source: str) -> Sequence[Task]:
    """The games of a split, by ALFWorld's own filter, or those that a prepared file lists.

    A split comes in an order that mixes the kinds of task, and is the same everywhere.
    Raises SettingError when there are none.
    """
    try:
        if source.endswith((".parquet", ".jsonl")):
            return PreparedRows(source)
        if source not in SPLITS:
            raise DataError(
                f"{source!r} is neither one of {', '.join(SPLITS)} nor a .parquet or .jsonl file of `prepare`"
            )
        games, counts = find_games(root, source)
    except DataError as error:
        raise SettingError(f"environment.options: {error}") from None
    if not games:
        raise SettingError(f"environment.options: {root} holds no games of {source} ({counts})")
    return [
        Task(f"alfworld_{source}-{_digest(game)}", {"gold": game}) for game in choose_games(games, len(games))
    ]


def interleaved(sources: Sequence[Sequence[Task]]) -> list[Task]:
    """One task of each source in turn, so that any number of them holds something of each."""
    longest = max(map(len, sources))
    return [source[i] for i in range(longest) for source in sources if i < len(source)]


def game_file(root: Path, task: Task) -> str:
    """The file of a task's game. A game's grammar is evaluated as Python, so none outside of `root` is played.

    Raises EpisodeLost when there is no such file.
    """
    name = task.data.get("gold") or task.data.get("ground_truth")  # `ground_truth`: a row under Molt
    if not isinstance(name, str):
        raise EpisodeLost("bad_game", f"the task {task.prompt_id} names no game file in `gold`")
    path = Path(os.path.abspath(root / name))
    if not path.is_relative_to(os.path.abspath(root)):
        raise EpisodeLost("bad_game", f"{name} lies outside of {VARIABLE}={root}")
    if not path.is_file():
        raise EpisodeLost(
            "bad_game", f"{path} does not exist; {VARIABLE}={root} holds other games than the list"
        )
    return str(path)


def _digest(game: str) -> str:
    return hashlib.sha256(game.encode()).hexdigest()[:16]
