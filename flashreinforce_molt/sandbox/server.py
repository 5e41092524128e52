"""The sandbox server as its client sees it: started, asked for connections, found dead, started again."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashreinforce_molt.sandbox.config import Isolation, SandboxUnavailable
from flashreinforce_molt.sandbox.zygote.confine import SINGLE_THREADED

_START_SECONDS = 120.0
_STOP_SECONDS = 2.0
_PACKAGE_HOME = str(Path(__file__).parents[2])
# The empty entry of -c and this checkout are on the path only while the server's own modules load.
_BOOT = (
    "import sys; sys.path[:] = [{home!r}, *(p for p in sys.path if p)]; "
    "from flashreinforce_molt.sandbox.zygote import main; sys.path.pop(0); main.main({descriptor})"
)


class ServerGone(Exception):
    """The server cannot take a call."""


@dataclass(frozen=True)
class Hello:
    """What the server said when it was ready."""

    layers: tuple[str, ...]
    preloaded: tuple[str, ...]


class Server:
    """One server process; `start` it once."""

    def __init__(self, isolation: Isolation, preload: Sequence[str], python: str) -> None:
        self._isolation, self._preload, self._python = isolation, preload, python
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> Hello:
        """Returns when the server is warm. Raises SandboxUnavailable when a required layer is missing."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        boot = _BOOT.format(home=_PACKAGE_HOME, descriptor=theirs.fileno())
        with theirs, tempfile.TemporaryFile() as complaints:
            self._process = subprocess.Popen(
                [self._python, "-s", "-c", boot],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
            self._control = ours
            theirs.close()
            ours.setblocking(False)
            hello = await self._hello()
            if not hello:
                await self.stop()
                complaints.seek(0)
                said = complaints.read()[-2000:].decode("utf-8", "replace").strip()
                raise RuntimeError(f"the sandbox server did not start: {said or 'it left without a word'}")
        answer = json.loads(hello)
        for layer in self._isolation.layers:
            if layer not in answer["layers"]:
                await self.stop()
                raise SandboxUnavailable(layer, answer["missing"].get(layer, "not offered by this backend"))
        return Hello(tuple(answer["layers"]), tuple(answer["preloaded"]))

    def connect(self) -> socket.socket:
        """A connection to a new supervisor. Raises ServerGone."""
        if self._control is None or not self.alive:
            raise ServerGone("the sandbox server is not running")
        ours, theirs = socket.socketpair()
        with theirs:
            rights = array.array("i", [theirs.fileno()])
            try:
                self._control.sendmsg([b"call"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            except OSError as error:  # also BlockingIOError: it has not taken a call for a long time
                ours.close()
                raise ServerGone(f"the sandbox server takes no calls: {error}") from None
        ours.setblocking(False)
        return ours

    async def stop(self) -> None:
        """End the server and every call with it."""
        if self._process is None or self._control is None:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # also wakes who waits for its first word
        deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
        while self._process.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                self._process.kill()
            await asyncio.sleep(0.005)
        self._control.close()

    def kill(self) -> None:
        """End the server at once; the next `connect` fails."""
        if self._process is not None:
            self._process.kill()

    async def _hello(self) -> bytes:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        settings = {
            "client_pid": os.getpid(),
            "backend": self._isolation.backend,
            "required": list(self._isolation.layers),
            "readable": list(self._isolation.readable),
            "preload": list(self._preload),
        }
        try:
            await loop.sock_sendall(self._control, json.dumps(settings).encode())
            return await asyncio.wait_for(loop.sock_recv(self._control, 1 << 16), _START_SECONDS)
        except (OSError, asyncio.TimeoutError):
            return b""
        except BaseException:
            self.kill()
            raise


def _environment() -> dict[str, str]:
    """Nothing of the caller's: a snippet could read what its ancestors were started with."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # the same snippet prints a set in the same order, in this run and the next
        "PYTHONDONTWRITEBYTECODE": "1",
        **SINGLE_THREADED,
    }
