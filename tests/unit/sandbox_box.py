"""A sandbox for tests that are not coroutines themselves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flashreinforce_molt.sandbox import Isolation, Limits, PythonSandbox, Result

SMALL = Limits(
    timeout=20.0, memory_bytes=256 << 20, disk_bytes=4 << 20, output_bytes=2048, output_kill_bytes=1 << 20
)


class Box:
    """Waits for what a sandbox does on an event loop in a thread."""

    def __init__(self, sandbox: PythonSandbox) -> None:
        self.sandbox = sandbox
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def run(self, code: str, timeout: float | None = None) -> Result:
        return self.wait(self.sandbox.run(code, timeout))

    def close(self) -> None:
        try:
            self.wait(self.sandbox.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@contextmanager
def running_box(limits: Limits = SMALL, isolation: Isolation = Isolation(), **options: Any) -> Iterator[Box]:  # noqa: B008
    box = Box(PythonSandbox(isolation, limits, **{"preload": (), "spares": 0, **options}))
    try:
        box.wait(box.sandbox.start())
        yield box
    finally:
        box.close()


def forks_of(server_pid: int) -> list[int]:
    """Living processes that were forked, directly or not, from a sandbox server."""
    server = Path(f"/proc/{server_pid}/cmdline").read_bytes()
    return [pid for pid in _processes_with(server) if pid != server_pid]


def _processes_with(line: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == line:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def command_line(pid: int) -> bytes:
    """To find the forks of a process that is about to end."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def alive_with(line: bytes) -> list[int]:
    return _processes_with(line)
