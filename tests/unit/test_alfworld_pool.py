"""Game workers: games that never mix, workers that die, hang or cannot start. Played by a stand-in."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from flashreinforce_molt.environments.alfworld.pool import GameError, GamePool


@pytest.fixture
def pool() -> Iterator[GamePool]:
    with GamePool(workers=2, timeout=0.5, module="alfworld_stand_in") as pool:
        yield pool


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(condition) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_games_side_by_side_never_mix(pool) -> None:
    async def play(length: int) -> str:
        game = pool.game("same file")
        scene = await game.start()
        for _ in range(length):
            scene = await game.act("count")
        game.close()
        return scene.text

    async def play_all() -> list[str]:
        return await asyncio.gather(*[play(length) for length in range(20)])

    assert asyncio.run(play_all()) == [f"You did {['count'] * length}." for length in range(20)]
    assert len(pool.pids()) == 2
    assert asyncio.run(play(3)) == "You did ['count', 'count', 'count']."  # another event loop


def test_a_worker_that_dies_is_replaced_and_every_game_of_it_goes_on(pool) -> None:
    async def play() -> tuple[str, str]:
        games = [pool.game("file") for _ in range(4)]  # two in each worker
        for game in games:
            await game.start()
            await game.act("count")
        scene = await games[0].act("die once")
        other = await games[2].act("count")
        assert [game.replays for game in games] == [1, 0, 1, 0]
        return scene.text, other.text

    assert asyncio.run(play()) == ("You did ['count', 'die once'].", "You did ['count', 'count'].")
    assert (pool.deaths, pool.timeouts) == (1, 0)


def test_a_game_that_kills_every_worker_is_given_up_by_name(pool) -> None:
    with pytest.raises(GameError, match=r"deadly game: the game worker died \(exit code 3"):
        asyncio.run(pool.game("deadly game").start())
    assert pool.deaths == 2


def test_the_last_words_of_a_worker_are_reported(pool) -> None:
    async def play() -> None:
        game = pool.game("deadly when begun again")
        game._file, file = "file", game._file
        await game.start()
        game._file = file
        await game.act("die once")

    with pytest.raises(GameError, match="deadly when begun again: the game worker died"):
        asyncio.run(play())


def test_a_request_that_hangs_is_cut_and_other_games_go_on(pool) -> None:
    async def play() -> str:
        stuck, other = pool.game("file"), pool.game("file")
        third = pool.game("file")  # in the worker of the stuck one
        for game in (stuck, other, third):
            await game.start()
        with pytest.raises(GameError, match=r"file: no answer within 0.5 s; the worker was killed"):
            await stuck.act("hang")
        return (await third.act("count")).text

    assert asyncio.run(play()) == "You did ['count']."
    assert (pool.deaths, pool.timeouts) == (0, 1)


def test_an_action_does_not_wait_for_games_that_load() -> None:
    async def play() -> list[str]:
        order: list[str] = []

        async def start(name: str) -> None:
            await pool.game(f"slow {name}").start()
            order.append(name)

        playing = pool.game("file")
        await playing.start()
        loading = [asyncio.create_task(start(name)) for name in "abc"]
        await asyncio.sleep(0.05)
        await playing.act("count")
        order.append("act")
        await asyncio.gather(*loading)
        return order

    with GamePool(workers=1, timeout=5, module="alfworld_stand_in") as pool:
        assert asyncio.run(play()) == ["a", "act", "b", "c"]


def test_a_bad_game_is_named_and_the_worker_lives(pool) -> None:
    with pytest.raises(GameError, match="missing game: FileNotFoundError"):
        asyncio.run(pool.game("missing game").start())
    assert pool.deaths == 0


def test_a_cancelled_start_leaves_nothing_behind(pool) -> None:
    async def play() -> str:
        game = pool.game("slow game")
        starting = asyncio.create_task(game.start())
        await asyncio.sleep(0.05)
        starting.cancel()
        game.close()
        game.close()
        again = pool.game("file")
        return (await again.start()).text

    assert asyncio.run(play()) == "You did []."
    assert sum(seat.games for seat in pool._seats) == 1


def test_closing_ends_the_processes_and_fails_what_runs(pool) -> None:
    async def play() -> None:
        game = pool.game("file")
        await game.start()
        hanging = asyncio.create_task(game.act("hang"))
        await asyncio.sleep(0.1)
        pids = pool.pids()
        await asyncio.to_thread(pool.close)
        with pytest.raises(GameError, match="the games were closed"):
            await hanging
        assert pids
        assert not any(alive(pid) for pid in pids)

    asyncio.run(play())
    assert pool.deaths == 0
    assert asyncio.run(pool.game("file").start()).won is False  # used again


def test_a_worker_that_cannot_start_says_why() -> None:
    with (
        GamePool(workers=1, module="no_such_module") as pool,
        pytest.raises(
            GameError, match=r"file: the game worker cannot start .*No module named no_such_module"
        ),
    ):
        asyncio.run(pool.game("file").start())


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(0)"])
def test_workers_die_with_their_parent(end) -> None:
    program = f"""
import asyncio, os, sys
from flashreinforce_molt.environments.alfworld.pool import GamePool
pool = GamePool(workers=1, module="alfworld_stand_in")
asyncio.run(pool.game("file").start())
print(*pool.pids(), flush=True)
{end}
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    (pid,) = map(int, done.stdout.split())
    assert eventually(lambda: not alive(pid)), done.stderr
