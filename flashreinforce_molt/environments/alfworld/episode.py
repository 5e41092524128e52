"""One game as an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from flashreinforce_molt.environments.alfworld.games import game_file
from flashreinforce_molt.environments.alfworld.pool import Game, GameError, GamePool, Scene
from flashreinforce_molt.environments.base import EpisodeLost, Step, Task, Text


class Format(Protocol):
    """How a game is put to the model, and how its replies are understood."""

    def opening(self, scene: Scene) -> Text: ...

    def following(self, scene: Scene) -> Text: ...

    def invalid(self, reply: str) -> Text: ...

    def command(self, reply: str) -> str | None: ...


class AlfWorldEpisode:
    """The reward is 1 when the task is done, and nothing before; until then the label says failed.

    A reply without an admissible action costs a turn and leaves the game as it is.
    """

    def __init__(self, root: Path, pool: GamePool, format: Format) -> None:
        self.root, self.pool, self.format = root, pool, format
        self.game: Game | None = None

    async def reset(self, task: Task) -> Text:
        self.game = self.pool.game(game_file(self.root, task))
        try:
            return self.format.opening(await self.game.start())
        except GameError as error:
            raise EpisodeLost("bad_game", str(error)) from None

    async def step(self, action: str) -> Step:
        assert self.game is not None, "step before reset"
        command = self.format.command(action)
        if command is None:
            return self._step(self.format.invalid(action), won=False, invalid=1)
        restarts = self.game.replays
        try:
            scene = await self.game.act(command)
            observation = None if scene.won else self.format.following(scene)
        except GameError as error:
            raise EpisodeLost("game_error", str(error)) from None
        return self._step(observation, won=scene.won, restarts=self.game.replays - restarts)

    async def close(self) -> None:
        if self.game is not None:
            self.game.close()

    @staticmethod
    def _step(observation: Text | None, *, won: bool, invalid: int = 0, restarts: int = 0) -> Step:
        info = {
            "failed": not won,
            "won": won,
            "steps": 1,
            "invalid_actions": invalid,
            "game_restarts": restarts,
        }
        return Step(observation, float(won), won, info=info)
