"""Looking after a tree of processes from outside: what it uses, stopping it, ending it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
_FREEZE_SECONDS = 1.0
_STOPPED = frozenset("TtZX")


@dataclass(frozen=True)
class Usage:
    """Of all living processes of a tree."""

    processes: int
    memory_bytes: int
    cpu_seconds: float


@dataclass(frozen=True)
class Memory:
    """From a process's status file, in bytes."""

    own: int
    """Anonymous and shared memory; what it inherited and never wrote to counts too."""
    virtual: int


def memory_of(proc: int, pid: int | str) -> Memory | None:
    """Memory of one process; `proc` is an open /proc. None when it has ended."""
    text = _read(proc, f"{pid}/status")
    if text is None:
        return None
    kilobytes = {"RssAnon": 0, "RssShmem": 0, "VmSize": 0}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in kilobytes:
            kilobytes[name] = int(value.split()[0])
    return Memory((kilobytes["RssAnon"] + kilobytes["RssShmem"]) << 10, kilobytes["VmSize"] << 10)


class Tree:
    """The descendants of this process. `inherited` is the memory of the process that they were forked from."""

    def __init__(self, proc: int, inherited: Memory) -> None:
        self._proc, self._inherited = proc, inherited

    def usage(self) -> Usage:
        pids = self._pids()
        memory = cpu = 0.0
        for pid in pids:
            own = memory_of(self._proc, pid)
            if own is not None:
                forked = own.virtual >= self._inherited.virtual
                memory += max(0, own.own - (self._inherited.own if forked else 0))
            cpu += self._cpu_seconds(pid)
        return Usage(len(pids), int(memory), cpu)

    def freeze(self) -> bool:
        """Stop every process of the tree; False when one keeps escaping."""
        deadline = time.monotonic() + _FREEZE_SECONDS
        while time.monotonic() < deadline:
            running = [pid for pid in self._pids() if self._state(pid) not in _STOPPED]
            if not running:
                return True
            self._signal(running, signal.SIGSTOP)
            time.sleep(0.0005)
        return False

    def thaw(self) -> None:
        self._signal(self._pids(), signal.SIGCONT)

    def end(self) -> None:
        """Kill and reap every child; whoever loses a parent becomes our child and is next."""
        while children := self._children(os.getpid()):
            self._signal(children, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _pids(self) -> list[int]:
        found: list[int] = []
        front = self._children(os.getpid())
        while front:
            found += front
            front = [child for pid in front for child in self._children(pid)]
        return found

    def _children(self, pid: int) -> list[int]:
        try:
            tasks = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._proc)
        except OSError:
            return []
        try:
            texts = [_read(tasks, f"{task}/children") for task in os.listdir(tasks)]
        except OSError:
            return []
        finally:
            os.close(tasks)
        return [int(child) for text in texts if text for child in text.split()]

    def _stat(self, pid: int) -> list[str]:
        text = _read(self._proc, f"{pid}/stat") or ""
        return text.rpartition(")")[2].split()

    def _state(self, pid: int) -> str:
        return (self._stat(pid) or ["X"])[0]

    def _cpu_seconds(self, pid: int) -> float:
        return sum(int(ticks) for ticks in self._stat(pid)[11:15]) * _TICK

    @staticmethod
    def _signal(pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _read(directory: int, path: str) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return None
    try:
        return os.read(descriptor, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
