"""The last steps of a snippet's process before it runs foreign code, in the order in which they must come."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashreinforce_molt.sandbox.zygote import landlock, linux, seccomp


@dataclass(frozen=True)
class Confinement:
    """What the snippet's process does to itself."""

    work: str | None
    """Directory that may be written, None for none."""
    layers: Sequence[str]
    readable: Sequence[str]
    own_processes: bool
    """Alone in a process namespace, hence free to fork and to signal."""
    owns_files: bool
    """Its user may own files of the host that it can see."""
    virtual_bytes: int
    """Address space that the interpreter has before the snippet."""

    def apply(self, limits: dict[str, Any]) -> None:
        os.umask(0o077)
        os.chdir(self.work or "/")
        _limit_resources(limits, self.virtual_bytes, self.own_processes)
        linux.drop_capabilities()
        linux.no_new_privileges()
        if "landlock" in self.layers:
            landlock.restrict(self.readable, [self.work] if self.work else [])
        if "seccomp" in self.layers:
            seccomp.install(None if self.own_processes else os.getpid(), owns_files=self.owns_files)

    def environment(self) -> dict[str, str]:
        home = self.work or "/nonexistent"
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": home,
            "TMPDIR": home,
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            **SINGLE_THREADED,
        }


SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _limit_resources(limits: dict[str, Any], virtual_bytes: int, own_processes: bool) -> None:
    values = {
        resource.RLIMIT_CORE: 1,  # too small for a core file, and 1 alone also keeps crash handlers from starting
        resource.RLIMIT_AS: virtual_bytes + limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["disk_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 1024,
    }
    if own_processes:
        values[resource.RLIMIT_NPROC] = (
            limits["processes"] + 3
        )  # the supervisor, the namespace's first process, this
    for name, value in values.items():
        hard = resource.getrlimit(name)[1]
        resource.setrlimit(name, (value, value) if hard < 0 else (min(value, hard), min(value, hard)))


def default_signals() -> None:
    """Undo what the server and the interpreter set; file size stays an OSError instead of a signal."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
