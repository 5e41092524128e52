"""The sandbox of a program: any number of snippets at once, each behind its own walls."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from flashreinforce_molt.sandbox.config import Isolation, Limits
from flashreinforce_molt.sandbox.connection import Connection, ConnectionLost, NoAnswer
from flashreinforce_molt.sandbox.result import Result
from flashreinforce_molt.sandbox.selfcheck import CHECK, verify
from flashreinforce_molt.sandbox.server import Server, ServerGone
from flashreinforce_molt.sandbox.session import Session


class PythonSandbox:
    """Runs Python that a model wrote. Use as an async context manager; entering it starts a warm server and proves
    the required layers by a snippet that tries them, or raises SandboxUnavailable.

    At most `concurrency` snippets run at once (default: one per processor that this process may use), the others
    wait; the wait does not count towards their limits. Walls for `spares` further calls (default: as many as may run)
    are built ahead, so that a call only has to run. `preload` names modules that are imported once for all.
    """

    def __init__(
        self,
        isolation: Isolation = Isolation(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008 - frozen
        *,
        concurrency: int | None = None,
        spares: int | None = None,
        sessions: int = 256,
        preload: Sequence[str] = ("numpy", "sympy"),
        python: str | None = None,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("sessions", sessions)):
            if value is not None and value < 1:
                raise ValueError(f"PythonSandbox {name}={value!r} must be at least 1")
        if spares is not None and spares < 0:
            raise ValueError(f"PythonSandbox spares={spares!r} must not be negative")
        self.isolation, self.limits = isolation, limits
        self.layers: tuple[str, ...] = ()
        """Layers in force, known once started."""
        self.preloaded: tuple[str, ...] = ()
        self.restarts = 0
        """Times that the server died and was started again."""
        self._preload, self._python = tuple(preload), python or sys.executable
        at_once = concurrency or len(os.sched_getaffinity(0))
        self._slots = asyncio.Semaphore(at_once)
        self._spare_count = at_once if spares is None else spares
        self._spares: deque[Connection] = deque()
        self._session_places = asyncio.Semaphore(sessions)
        self._starting = asyncio.Lock()
        self._server: Server | None = None
        self._closed = False

    async def __aenter__(self) -> PythonSandbox:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the server and prove its walls."""
        self._closed = False
        try:
            await self._start_server()
            verify(await self._call(self._connect(), CHECK, 30.0), self.layers)
            self._build_spares()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the server. Calls in flight and waiting ones return with the status `cancelled`."""
        self._closed = True
        self._drop_spares()
        if self._server is not None:
            await self._server.stop()

    @property
    def server_pid(self) -> int | None:
        """Process id of the server, for those who watch over processes."""
        return self._server.pid if self._server else None

    async def run(self, code: str, timeout: float | None = None) -> Result:
        """Run a snippet in an interpreter of its own. Never raises for what the snippet does.

        When the awaiting task is cancelled, the snippet is ended first; then CancelledError goes on.
        """
        seconds = self._checked_timeout(timeout)
        encoded = self._encoded(code)
        if isinstance(encoded, Result):
            return encoded
        async with self._slots:
            try:
                connection = await self._open()
            except (ServerGone, RuntimeError) as error:
                return replace(self._failed(str(error)), state_lost=False)
            result = await self._call(connection, encoded, seconds)
            self._build_spares()
            return result

    def session(self) -> Session:
        """An interpreter that keeps its namespace from snippet to snippet, as an async context manager."""
        return Session(self)

    async def _call(self, connection: Connection, code: bytes, seconds: float) -> Result:
        try:
            result = await self._run_on(connection, code, seconds, last=True)
            return replace(result, state_lost=False)  # there is none to lose
        finally:
            await connection.close()

    async def _run_on(self, connection: Connection, code: bytes, seconds: float, *, last: bool) -> Result:
        try:
            return await connection.run(code, seconds, last=last)
        except ConnectionLost:
            return self._failed("the sandbox server or the supervisor of this call died during the call")
        except NoAnswer as error:
            if self._server is not None and not self._closed:
                self._server.kill()  # the next call starts another
            return self._failed(str(error))

    async def _open(self) -> Connection:
        """A connection; starts the server again where it has died."""
        if self._closed:
            raise ServerGone("the sandbox is closed")
        async with self._starting:
            if self._server is None or not self._server.alive:
                if self._server is not None:
                    self.restarts += 1
                self._drop_spares()
                await self._start_server()
        if self._closed:
            raise ServerGone("the sandbox was closed meanwhile")
        while self._spares:
            spare = self._spares.popleft()
            if spare.waiting:
                return spare
            spare.abandon()
        return self._connect()

    def _connect(self) -> Connection:
        if self._server is None:
            raise ServerGone("the sandbox has not been started")
        return Connection(self._server.connect(), self.limits)

    def _build_spares(self) -> None:
        try:
            while len(self._spares) < self._spare_count and not self._closed:
                self._spares.append(self._connect())
        except ServerGone:
            pass  # the next call starts another server

    def _drop_spares(self) -> None:
        while self._spares:
            self._spares.pop().abandon()

    async def _start_server(self) -> None:
        self._server = Server(self.isolation, self._preload, self._python)
        hello = await self._server.start()
        self.layers, self.preloaded = hello.layers, hello.preloaded

    def _failed(self, detail: str) -> Result:
        return Result("cancelled" if self._closed else "sandbox_error", detail=detail, state_lost=True)

    def _checked_timeout(self, timeout: float | None) -> float:
        seconds = self.limits.timeout if timeout is None else timeout
        if not math.isfinite(seconds) or seconds <= 0:
            raise ValueError(f"timeout={timeout!r} must be a positive finite number of seconds")
        return seconds

    def _encoded(self, code: str) -> bytes | Result:
        most = self.limits.code_bytes
        encoded = code.encode("utf-8", "surrogatepass") if len(code) <= most else None
        if encoded is not None and len(encoded) <= most:
            return encoded
        said = f"the code is longer than Limits.code_bytes={most}"
        return Result("error", stderr=f"{said}\n", detail=said)
