"""Games played beforehand, to show a model initialised here what acting looks like. Not part of the method."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path

from flashreinforce_molt.environments.alfworld.codes import Codes, code_of
from flashreinforce_molt.environments.alfworld.pool import GameError, GamePool
from flashreinforce_molt.environments.base import Demonstration, Text

RANDOM_STEPS = 8
"""Actions of a game that is played at random."""

AT_ONCE = 16
"""Games under way at a time; each holds a few MB in its worker."""

_GO = "go to "


@dataclass(frozen=True)
class Recording:
    """One game as it was played: what was seen, and the code of what was done."""

    expert: bool
    prompt: Text
    actions: tuple[str, ...]
    observations: tuple[Text, ...]
    """After every action but the last."""

    def demonstration(self) -> Demonstration:
        turns = tuple(zip(self.actions[:-1], self.observations, strict=True))
        return Demonstration(self.prompt, self.actions[-1], turns)


async def record(pool: GamePool, files: list[str], times: int, wander: float) -> dict[str, list[Recording]]:
    """Play every game `times` times by the way that its file knows, and as often at random."""

    room = asyncio.Semaphore(AT_ONCE)

    async def play(file: str, number: int) -> Recording:
        rng = random.Random(f"{file} {number}")
        async with room:
            if number < times:
                return await _play_expert(pool, file, rng, wander)
            return await _play_random(pool, file, rng)

    played = await asyncio.gather(*[play(file, number) for file in files for number in range(2 * times)])
    return {file: list(played[2 * times * i :][: 2 * times]) for i, file in enumerate(files)}


async def _play_random(pool: GamePool, file: str, rng: random.Random) -> Recording:
    player = _Player(pool, file)
    await player.begin()
    while len(player.actions) < RANDOM_STEPS and not player.won:
        await player.act(rng.choice(list(player.format.codes.values())))
    return player.end(expert=False)


async def _play_expert(pool: GamePool, file: str, rng: random.Random, wander: float) -> Recording:
    """The walkthrough; before each of its steps, perhaps a walk to another place and, where needed, back."""
    player = _Player(pool, file)
    await player.begin()
    place: str | None = None
    for command in json.loads(Path(file).read_text("utf-8"))["walkthrough"]:
        goes = command.startswith(_GO)
        elsewhere = [c for c in player.format.codes.values() if c.startswith(_GO) and c != command]
        if rng.random() < wander and elsewhere and (goes or place):
            await player.act(rng.choice(elsewhere))
            if not goes and place:
                await player.act(place)
        await player.act(command)
        place = command if goes else place
    if not player.won:
        raise GameError(f"{file}: its walkthrough does not win")
    return player.end(expert=True)


class _Player:
    """A game in codes that remembers what was seen and done."""

    def __init__(self, pool: GamePool, file: str) -> None:
        self.game, self.format = pool.game(file), Codes()
        self.seen: list[Text] = []
        self.actions: list[str] = []
        self.won = False

    async def begin(self) -> None:
        self.seen.append(self.format.opening(await self.game.start()))

    async def act(self, command: str) -> None:
        self.actions.append(code_of(self.format.codes, command))
        scene = await self.game.act(command)
        self.won = scene.won
        self.seen.append(self.format.following(scene))

    def end(self, *, expert: bool) -> Recording:
        self.game.close()
        return Recording(expert, self.seen[0], tuple(self.actions), tuple(self.seen[1:-1]))
