"""Lists of ALFWorld games, by the package's own rule for which of them count."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from flashreinforce_molt.data.errors import DataError

GAMES_FOLDER = "json_2.1.1"
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)


@dataclass
class GameCounts:
    """What became of the trials of a split."""

    trials: int = 0
    sliced_or_movable: int = 0
    other_task_type: int = 0
    without_game_file: int = 0
    unsolvable: int = 0
    games: int = 0
    chosen: int = 0


def games_root(given: Path | None) -> Path:
    """The folder that game files are named relative to: `given`, else ALFWORLD_DATA.

    Raises DataError that says how to get the games.
    """
    variable = os.environ.get("ALFWORLD_DATA")
    if given is None and not variable:
        raise DataError(
            "ALFWORLD_DATA is not set; fetch the games with alfworld-download (pip install "
            "'flashreinforce_molt[alfworld]') and set it to their folder, or name that folder with --source"
        )
    root = given or Path(str(variable)).expanduser()
    if root.name == GAMES_FOLDER:
        root = root.parent
    if not (root / GAMES_FOLDER).is_dir():
        origin = "--source" if given else "ALFWORLD_DATA"
        raise DataError(
            f"{origin}={root} holds no folder {GAMES_FOLDER}; fetch the games with alfworld-download"
        )
    return root


def find_games(root: Path, split: str) -> tuple[list[str], GameCounts]:
    """Game files of a split relative to `root`, sorted, and what was left out.

    The rule is that of `AlfredTWEnv.collect_game_files`: no sliced and no movable objects, one of the six task types,
    a game file, and one that its maker solved. Raises DataError for a file that cannot be read.
    """
    folder = root / GAMES_FOLDER / split
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist; fetch the games with alfworld-download")
    counts, games = GameCounts(), []
    for trajectory in sorted(folder.rglob("traj_data.json")):
        counts.trials += 1
        trial = trajectory.parent.relative_to(root)
        game = trajectory.with_name("game.tw-pddl")
        if "movable" in str(trial) or "Sliced" in str(trial):
            counts.sliced_or_movable += 1
        elif _read(trajectory).get("task_type") not in TASK_TYPES:
            counts.other_task_type += 1
        elif not game.is_file():
            counts.without_game_file += 1
        elif not _read(game).get("solvable"):
            counts.unsolvable += 1
        else:
            games.append(str(trial / game.name))
    counts.games = counts.chosen = len(games)
    return games, counts


def choose_games(games: list[str], number: int) -> list[str]:
    """The first `number` games by the SHA-256 of their path, which is an order that no download changes."""
    return sorted(games, key=lambda game: hashlib.sha256(game.encode()).digest())[:number]


def _read(path: Path) -> dict:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} is no JSON object")
    return content
