"""The games as a suite: where they are, how they are posed, and the worker processes that its episodes share."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from collections.abc import Sequence

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.data.rows import TrainingOrder
from flashreinforce_molt.environments.alfworld.codes import Codes
from flashreinforce_molt.environments.alfworld.episode import AlfWorldEpisode
from flashreinforce_molt.environments.alfworld.games import game_file, games_folder, interleaved, tasks_of
from flashreinforce_molt.environments.alfworld.pool import GamePool
from flashreinforce_molt.environments.alfworld.recording import Recording, record
from flashreinforce_molt.environments.alfworld.words import Words
from flashreinforce_molt.environments.base import Demonstration, Task

FORMATS = ("words", "codes")
RECORDINGS = 2
"""Times that a game is played for the warm start, by the expert and at random each."""


class AlfWorld:
    """Suite over game files.

    Options: `path` and `evaluation_path` (splits, or files of `prepare`), `max_rows` (only so many training games),
    `data` (the games' folder; ALFWORLD_DATA without), `format` ("words": chat; "codes": one character for an
    action), `workers` (processes that play the games), `kept_games` (how many each of them keeps translated, 2 to
    8 MB for one), `timeout_s` (for one action or one reset in a worker), `wander` (chance of a detour at every step
    of a demonstration). The limit of turns is the engine's, `environment.max_turns`.
    """

    def __init__(
        self,
        path: str = "train",
        evaluation_path: Sequence[str] = ("valid_seen", "valid_unseen"),
        max_rows: int | None = None,
        data: str | None = None,
        format: str = "words",
        workers: int = 2,
        kept_games: int = 16,
        timeout_s: float = 60.0,
        wander: float = 0.3,
    ) -> None:
        if format not in FORMATS:
            raise SettingError(f"environment.options.format={format!r}; known: {', '.join(FORMATS)}")
        if workers < 1 or kept_games < 1 or timeout_s <= 0:
            raise SettingError(
                f"environment.options: workers={workers}, kept_games={kept_games} and timeout_s={timeout_s} must "
                "be positive"
            )
        if not importlib.util.find_spec("alfworld"):
            raise SettingError(
                "environment.name=alfworld needs the games' package: pip install -e '.[alfworld]'"
            )
        self.root = games_folder(data)
        self.path, self.max_rows = path, max_rows
        self.evaluation_path = (
            [evaluation_path] if isinstance(evaluation_path, str) else list(evaluation_path)
        )
        self.format, self.wander = format, wander
        self.pool = GamePool(workers=workers, timeout=timeout_s, kept_games=kept_games)
        self._recordings: dict[str, list[Recording]] | None = None

    def training_tasks(self, seed: int) -> TrainingOrder:
        return TrainingOrder(self._training_games(), seed)

    def evaluation_tasks(self, size: int) -> list[Task]:
        """`size` games, of each evaluation list in turn.

        Raises SettingError when there are fewer.
        """
        tasks = interleaved([tasks_of(self.root, source) for source in self.evaluation_path])
        if len(tasks) < size:
            raise SettingError(
                f"evaluation.size={size}: {' and '.join(self.evaluation_path)} hold {len(tasks)} games; use a smaller size"
            )
        return tasks[:size]

    def environment(self) -> AlfWorldEpisode:
        return AlfWorldEpisode(self.root, self.pool, Words() if self.format == "words" else Codes())

    async def close(self) -> None:
        """End the worker processes. They start on first use."""
        await asyncio.to_thread(self.pool.close)

    def demonstration(self, task: Task, rng: random.Random, correct: bool) -> Demonstration:
        """The way that the game file knows, with detours; or, as the wrong one, admissible actions at random."""
        if self.format != "codes":
            raise SettingError("warm_start.steps: alfworld demonstrates with format=codes only; use 0")
        if self._recordings is None:
            self._recordings = self._record()
        played = self._recordings[game_file(self.root, task)]
        return rng.choice([recording for recording in played if recording.expert == correct]).demonstration()

    def _training_games(self) -> Sequence[Task]:
        return tasks_of(self.root, self.path)[: self.max_rows]

    def _record(self) -> dict[str, list[Recording]]:
        """Play every training game beforehand, with workers of its own that are gone afterwards."""
        files = [game_file(self.root, task) for task in self._training_games()]
        with GamePool(workers=len(self.pool), timeout=self.pool.timeout) as pool:
            return asyncio.run(record(pool, files, RECORDINGS, self.wander))
