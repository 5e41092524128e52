"""State per trajectory: snippets that share one interpreter."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from flashreinforce_molt.sandbox.connection import Connection
from flashreinforce_molt.sandbox.result import Result
from flashreinforce_molt.sandbox.server import ServerGone

if TYPE_CHECKING:
    from flashreinforce_molt.sandbox.client import PythonSandbox


_CLOSED = Result("cancelled", detail="the session was closed meanwhile", state_lost=True)


class Session:
    """Snippets run one after the other and see each other's globals and files. Limits hold for each snippet.

    The interpreter starts with the first snippet, is stopped between snippets (no background work), and ends with
    the session. A snippet that passes a limit takes it along: its result says `state_lost`, and the next snippet
    starts with an empty namespace.
    """

    def __init__(self, box: PythonSandbox) -> None:
        self._box = box
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._open = False

    async def __aenter__(self) -> Session:
        await self._box._session_places.acquire()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the interpreter and everything that it started; a snippet that runs returns as `cancelled`."""
        if not self._open:
            return
        self._open = False
        if self._connection is not None:
            self._connection.hang_up()
        try:
            async with self._turn:
                await self._drop()
        finally:
            self._box._session_places.release()

    async def run(self, code: str, timeout: float | None = None) -> Result:
        """Run a snippet in the session's interpreter, as `PythonSandbox.run` does in a fresh one."""
        if not self._open:
            raise RuntimeError("the session is not open: use `async with box.session() as session`")
        seconds = self._box._checked_timeout(timeout)
        encoded = self._box._encoded(code)
        if isinstance(encoded, Result):
            return encoded
        async with self._turn, self._box._slots:
            if not self._open:
                return _CLOSED
            if self._connection is None:
                try:
                    self._connection = await self._box._open()
                except (ServerGone, RuntimeError) as error:
                    return self._box._failed(str(error))
            try:
                result = await self._box._run_on(self._connection, encoded, seconds, last=False)
            except BaseException:
                await self._drop()
                raise
            if result.state_lost:
                await self._drop()
            self._box._build_spares()
            return result if self._open or result.ok else _CLOSED

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
