"""Games in a few worker processes, each of which plays many: started on first use, replaced when they die.

    with GamePool(workers=2) as pool:
        game = pool.game("/data/alfworld/json_2.1.1/train/.../game.tw-pddl")
        scene = await game.start()
        scene = await game.act("go to fridge 1")
        game.close()

A game is its file and the commands so far. When its worker dies it is played again up to where it was, in the next
one; so no episode is lost to a crash that it did not cause.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

WORKER = "flashreinforce_molt.environments.alfworld.worker"

_START_LIMIT_S = 120.0
_LAST_WORDS_S = 1.0
_SET_VARIABLES = {
    "PYTHONHASHSEED": "0",  # texts list things in the order of sets: the same in every worker
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_URGENT, _PATIENT = 0, 1


class GameError(RuntimeError):
    """A game cannot be played: its file is bad, it took too long, or its worker died twice under it."""


class _WorkerDied(GameError):
    """The process ended while it worked on a request."""


class _GameLost(GameError):
    """The worker that knew the game is gone."""


class Scene(NamedTuple):
    """What a game shows after an action."""

    text: str
    admissible: list[str]
    won: bool


class GamePool:
    """Worker processes and what became of them. Usable from any event loop, and again after `close`.

    `timeout` is in seconds for one request, from the moment a worker takes it. `kept_games` is how many games each
    worker keeps translated. `stock` plays without the fast path, for comparison. `module` is what workers run.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        timeout: float = 60.0,
        kept_games: int = 16,
        stock: bool = False,
        module: str = WORKER,
    ) -> None:
        self.timeout, self.kept_games, self.stock, self.module = timeout, kept_games, stock, module
        self.deaths = 0
        """Workers that died on their own."""
        self.timeouts = 0
        """Requests that took too long; their workers were killed."""
        self._seats = [_Seat(self) for _ in range(workers)]
        self._numbers = itertools.count()

    def game(self, file: str) -> Game:
        """A game in the worker that has the fewest; nothing runs before its `start`."""
        seat = min(self._seats, key=lambda seat: seat.games)
        seat.games += 1
        return Game(seat, next(self._numbers), file)

    def __len__(self) -> int:
        return len(self._seats)

    def pids(self) -> list[int]:
        """Processes that run now."""
        return [seat.process.pid for seat in self._seats if seat.process is not None]

    def close(self) -> None:
        """End every worker; requests under way fail. Idempotent."""
        for seat in self._seats:
            seat.stop()
        for seat in self._seats:
            seat.join()

    def __enter__(self) -> GamePool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Game:
    """One game, wherever it runs."""

    def __init__(self, seat: _Seat, number: int, file: str) -> None:
        self._seat, self._number, self._file = seat, number, file
        self.commands: list[str] = []
        self.replays = 0
        """How often the game was begun again because its worker died."""
        self._open = True

    async def start(self) -> Scene:
        """Load the game. Raises GameError that names the file."""
        try:
            return await self._begin()
        except _WorkerDied:
            self.replays += 1
            return await self._begin()

    async def act(self, command: str) -> Scene:
        """Do one of the admissible commands."""
        self.commands.append(command)
        try:
            return await self._ask(do="act", command=command)
        except (_WorkerDied, _GameLost):
            self.replays += 1
            return await self._begin()

    def close(self) -> None:
        """Give the game's environment back; a start that is under way ends first. Idempotent."""
        if self._open:
            self._open = False
            self._seat.games -= 1
            self._seat.submit(_PATIENT, {"do": "close", "game": self._number})

    async def _begin(self) -> Scene:
        return await self._ask(_PATIENT, do="start", file=self._file, replay=self.commands)

    async def _ask(self, priority: int = _URGENT, **request: Any) -> Scene:
        try:
            answer = await asyncio.wrap_future(self._seat.submit(priority, {**request, "game": self._number}))
        except GameError as error:
            raise type(error)(f"{self._file}: {error}") from None
        return Scene(answer["text"], answer["admissible"], answer["won"])


@dataclass(order=True)
class _Request:
    """`order` keeps first come first served, after priority: a game under way never waits for others to load."""

    priority: int
    order: int
    message: Mapping[str, Any] | None = field(compare=False)
    future: Future[dict[str, Any]] = field(default_factory=Future, compare=False)


class _Seat:
    """A place for one worker process, and the thread that talks to it."""

    def __init__(self, pool: GamePool) -> None:
        self.pool = pool
        self.games = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log: Any = None
        self._requests: queue.PriorityQueue[_Request] = queue.PriorityQueue()
        self._orders = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._lock = threading.Lock()

    def submit(self, priority: int, message: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Queue a request; the thread is started by the first."""
        request = _Request(priority, next(self._orders), message)
        with self._lock:
            self._requests.put(request)
            if self._thread is None and message["do"] != "close":
                # A daemon, so that a forgotten pool never holds up the end of the program.
                self._thread = threading.Thread(target=self._serve, name="alfworld", daemon=True)
                self._thread.start()
        return request.future

    def stop(self) -> None:
        """Fail what waits and what runs, and begin to end the process."""
        with self._lock:
            waiting, self._requests = self._requests, queue.PriorityQueue()
            self._stopping = self._thread is not None
        while not waiting.empty():
            request = waiting.get()
            if request.future.set_running_or_notify_cancel():
                request.future.set_exception(GameError("the games were closed"))
        waiting.put(_Request(_URGENT, -1, None))
        if process := self.process:
            process.kill()

    def join(self) -> None:
        """Wait until the process is gone."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._stopping = False

    def _serve(self) -> None:
        requests = self._requests
        while (request := requests.get()).message is not None:
            if not request.future.set_running_or_notify_cancel():
                continue
            try:
                request.future.set_result(self._ask(request.message))
            except Exception as error:
                request.future.set_exception(error)
        self._end()

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["do"] == "close" and self.process is None:
            return {}
        connection = self._connection or self._start()
        try:
            connection.send_bytes(json.dumps(message).encode())
            answer = self._receive(connection, self.pool.timeout)
        except (EOFError, OSError):
            last_words = self._end(_LAST_WORDS_S)
            if self._stopping:
                raise GameError("the games were closed") from None
            self.pool.deaths += 1
            raise _WorkerDied(f"the game worker died {last_words}") from None
        if "lost" in answer:
            raise _GameLost("the game worker was replaced")
        if "error" in answer:
            raise GameError(answer["error"])
        return answer

    def _receive(self, connection: Connection, limit: float) -> dict[str, Any]:
        if not connection.poll(limit):
            self.pool.timeouts += 1
            self._end()
            raise GameError(f"no answer within {limit:g} s; the worker was killed")
        return json.loads(connection.recv_bytes())

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process, in _end
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    self.pool.module,
                    str(theirs.fileno()),
                    "stock" if self.pool.stock else "fast",
                    str(self.pool.kept_games),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env={**os.environ, **_SET_VARIABLES, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection = connection = Connection(ours.detach())
        try:
            self._receive(connection, _START_LIMIT_S)
        except (EOFError, OSError):
            raise GameError(f"the game worker cannot start {self._end(_LAST_WORDS_S)}") from None
        return connection

    def _end(self, wait_s: float = 0.0) -> str:
        """Kill the process unless it ends by itself; returns how it did and what it wrote last."""
        process, connection, log = self.process, self._connection, self._log
        self.process = self._connection = self._log = None
        if process is None or connection is None:
            return ""
        connection.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
        process.kill()
        code = process.wait()
        log.seek(max(0, log.seek(0, os.SEEK_END) - 400))
        written = log.read().decode(errors="replace").strip()
        log.close()
        return f"(exit code {code}; it wrote: {written or 'nothing'})"
