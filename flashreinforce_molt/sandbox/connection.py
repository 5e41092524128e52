"""A line to one supervisor, hence to one interpreter: snippets go in, results come out, closing it ends all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import asdict
from typing import Any

from flashreinforce_molt.sandbox import wire
from flashreinforce_molt.sandbox.config import Limits
from flashreinforce_molt.sandbox.result import STATUSES, Result

_GRACE_SECONDS = 20.0
"""How much longer than its limit a call may take on a crowded machine before the sandbox itself is at fault."""
_END_SECONDS = 10.0


class ConnectionLost(Exception):
    """The supervisor ended without an answer."""


class NoAnswer(Exception):
    """The supervisor is there but does not answer."""


class Connection:
    """Has the walls built at once, and sends one snippet at a time."""

    def __init__(self, line: socket.socket, limits: Limits) -> None:
        self._line, self._limits = line, limits
        with contextlib.suppress(OSError):  # the first snippet will find out; a few hundred bytes never block
            line.sendall(wire.pack({"limits": asdict(limits)}))

    async def run(self, code: bytes, timeout: float, *, last: bool) -> Result:
        """Run a snippet; with `last` its interpreter and all that it started have ended on return."""
        cpu = self._limits.cpu_seconds
        request = {
            "timeout": timeout,
            "cpu_seconds": timeout + 1.0 if cpu is None else cpu,
            "last": last,
        }
        try:
            return await asyncio.wait_for(self._exchange(wire.pack(request, code)), timeout + _GRACE_SECONDS)
        except asyncio.TimeoutError:
            raise NoAnswer(f"no answer {_GRACE_SECONDS:g} s after the limit of {timeout:g} s") from None
        except OSError as error:
            raise ConnectionLost(str(error)) from None

    async def close(self) -> None:
        """Hang up, and wait until the supervisor has ended everything and left."""
        try:
            self.hang_up()
            await asyncio.wait_for(self._until_end(), _END_SECONDS)
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            self._line.close()

    def hang_up(self) -> None:
        """Have the supervisor end everything; a snippet that runs ends without an answer."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    @property
    def waiting(self) -> bool:
        """The supervisor is there and has nothing to say, as it should be before a snippet."""
        try:
            self._line.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def abandon(self) -> None:
        """Hang up without waiting."""
        self._line.close()

    async def _until_end(self) -> None:
        loop = asyncio.get_running_loop()
        while await loop.sock_recv(self._line, 1 << 16):
            pass

    async def _exchange(self, request: bytes) -> Result:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # it may answer before it has read all
            await loop.sock_sendall(self._line, request)
        header_bytes, payload_bytes = struct.unpack(">II", await self._exactly(8))
        header = json.loads(await self._exactly(header_bytes))
        return _result(header, await self._exactly(payload_bytes))

    async def _exactly(self, count: int) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < count:
            piece = await loop.sock_recv(self._line, min(count - len(data), 1 << 18))
            if not piece:
                raise ConnectionLost("the supervisor of the call ended without an answer")
            data += piece
        return bytes(data)


def _result(header: dict[str, Any], payload: bytes) -> Result:
    parts, start = [], 0
    for length in header["lengths"]:
        parts.append(payload[start : start + length].decode("utf-8", "replace"))
        start += length
    (out_head, out_tail, err_head, err_tail, *values), (out_dropped, err_dropped) = parts, header["dropped"]
    value = values[0] if values else None
    if value is not None and header["value_cut"]:
        value += " ... [the rest dropped]"
    assert header["status"] in STATUSES, header
    return Result(
        status=header["status"],
        stdout=_joined(out_head, out_dropped, out_tail),
        stderr=_joined(err_head, err_dropped, err_tail),
        value=value,
        seconds=header["seconds"],
        detail=header["detail"],
        state_lost=header["state_lost"],
    )


def _joined(head: str, dropped: int, tail: str) -> str:
    return f"{head}\n... [{dropped} bytes dropped] ...\n{tail}" if dropped else head + tail
