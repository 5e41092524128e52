"""The walls of one call: made by its supervisor, entered by the snippet's process."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashreinforce_molt.sandbox.zygote import bubblewrap, linux, namespaces, runner
from flashreinforce_molt.sandbox.zygote.confine import Confinement
from flashreinforce_molt.sandbox.zygote.watch import Memory


@dataclass(frozen=True)
class Host:
    """What the server found and prepared, for all its calls."""

    backend: str
    layers: Sequence[str]
    """Active layers."""
    readable: Sequence[str]
    server: namespaces.Server | None
    """Set where the server sits in namespaces of its own."""
    proc: int
    """An open /proc; the path itself is out of sight in the private root."""
    memory: Memory
    """Of the server, hence inherited by every call."""
    bubblewrap: str | None = None


@dataclass(frozen=True)
class Lines:
    """The supervisor's ends of the pipes to a snippet's process, and a handle on the process."""

    control: socket.socket
    stdout: int
    stderr: int
    handle: int


def open_cage(host: Host, slot: int, limits: dict[str, Any], keep: set[int]) -> Lines:
    """Give up every privilege and start the snippet's process. `keep` are descriptors that the supervisor needs."""
    server_pid = os.getppid()
    linux.adopt_orphans()
    if host.server is not None:
        namespaces.enter_call(host.server, host.proc, disk_bytes=limits["disk_bytes"], files=limits["files"])
    if "uid" in host.layers:
        namespaces.drop_identity(slot)
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != server_pid:
        os._exit(1)
    ours, theirs = socket.socketpair()
    (stdout, stdout_in), (stderr, stderr_in) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _become_snippet(host, limits, (theirs.fileno(), stdout_in, stderr_in))
    for descriptor in (stdout_in, stderr_in):
        os.close(descriptor)
    theirs.close()
    for descriptor in (stdout, stderr):
        os.set_blocking(descriptor, False)
    ours.setblocking(False)
    lines = Lines(ours, stdout, stderr, os.pidfd_open(child))
    linux.close_all_but({*keep, ours.fileno(), stdout, stderr, lines.handle, host.proc})
    return lines


def confinement(host: Host) -> Confinement:
    """How the snippet's process confines itself under this host's backend."""
    return Confinement(
        work=namespaces.WORK if host.backend != "landlock" else None,
        layers=[layer for layer in host.layers if layer in ("seccomp", "landlock")],
        readable=host.readable,
        own_processes=host.backend != "landlock",
        owns_files=host.backend == "landlock",
        virtual_bytes=host.memory.virtual,
    )


def _become_snippet(host: Host, limits: dict[str, Any], inner: tuple[int, int, int]) -> None:
    """Never returns."""
    try:
        os.setsid()
        linux.die_with_parent(signal.SIGKILL)
        _arrange_descriptors(*inner)
        _leave_if_orphaned()
        if host.backend == "bubblewrap":
            assert host.bubblewrap is not None
            settings = json.dumps({"limits": limits, "layers": list(host.layers)})
            command = bubblewrap.command(host.bubblewrap, host.readable, settings, limits["disk_bytes"])
            os.execve(command[0], command, {"PATH": "/usr/bin:/bin"})
        if host.server is not None:
            _stay_as_first_process()
        runner.main(confinement(host), limits)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(1)


def _arrange_descriptors(control: int, stdout: int, stderr: int) -> None:
    # Moved out of the way first, so that none of the targets is still a source.
    high = [os.dup2(descriptor, 200 + i) for i, descriptor in enumerate((control, stdout, stderr))]
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (high[1], 1), (high[2], 2), (high[0], runner.CONTROL)):
        os.dup2(source, target)
    linux.close_all_but({runner.CONTROL})


def _leave_if_orphaned() -> None:
    """The supervisor may have died before `die_with_parent` took hold; then nobody reads our output any more."""
    poll = select.poll()
    poll.register(1, 0)
    if poll.poll(0):
        os._exit(1)


def _stay_as_first_process() -> None:
    """Fork the process that goes on; this one stays to reap, since the first process of a namespace is immune to
    signals that should end a snippet."""
    child = os.fork()
    if child == 0:
        os.setsid()
        return
    for descriptor in (0, 1, 2, runner.CONTROL):
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
