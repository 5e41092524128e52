"""The server: a warm interpreter with an empty environment that forks a supervisor for every call."""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from flashreinforce_molt.sandbox import wire
from flashreinforce_molt.sandbox.zygote import cage, landlock, linux, namespaces, readable, seccomp
from flashreinforce_molt.sandbox.zygote.supervisor import supervise
from flashreinforce_molt.sandbox.zygote.watch import Memory, Tree, memory_of

_LIBRARY = (
    "math cmath random itertools functools collections fractions decimal statistics re json datetime typing"
)
_LIBRARY += (
    " dataclasses string heapq bisect operator copy io time traceback linecache tempfile textwrap enum"
)


def main(descriptor: int) -> None:
    """Serve the client at the other end of this socket until it goes."""
    control = socket.socket(fileno=descriptor)
    settings = json.loads(control.recv(1 << 16))
    client = os.pidfd_open(settings["client_pid"])
    loaded = _preload(settings["preload"])
    host, missing = _prepare(settings)
    hello = {"layers": list(host.layers), "missing": missing, "preloaded": loaded}
    control.send(json.dumps(hello).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    gc.collect()
    gc.freeze()  # keeps the collector from touching, hence copying, pages in every child
    _serve(control, client, host)


def _serve(control: socket.socket, client: int, host: cage.Host) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(client, select.POLLIN)
    slot = os.getpid() * 1000
    while True:
        events = dict(poll.poll())
        if client in events:  # a process that the client forked may still hold the socket
            return
        message, descriptors = _receive_descriptors(control)
        if not message:
            return
        slot += 1
        for connection in descriptors:
            _start_supervisor(host, connection, slot)


def _start_supervisor(host: cage.Host, descriptor: int, slot: int) -> None:
    connection = socket.socket(fileno=descriptor)
    try:
        child = os.fork()
    except OSError as error:
        _report_failure(connection, error)
        connection.close()
        return
    if child:
        connection.close()
        return
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        linux.close_all_but({descriptor, host.proc})
        supervise(host, connection, slot)
    except BaseException as error:
        _report_failure(connection, error)
    os._exit(0)


def _report_failure(connection: socket.socket, error: BaseException) -> None:
    detail = str(error) if isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
    header = {"status": "sandbox_error", "detail": detail, "seconds": 0.0, "state_lost": True}
    with contextlib.suppress(OSError):  # the client may have gone
        connection.sendall(wire.pack({**header, "lengths": [0] * 4, "dropped": [0, 0], "value_cut": False}))


def _receive_descriptors(control: socket.socket) -> tuple[bytes, list[int]]:
    try:
        message, ancillary, _, _ = control.recvmsg(16, socket.CMSG_SPACE(4))
    except ConnectionResetError:
        return b"", []
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return message, list(received)


def _preload(names: list[str]) -> list[str]:
    """Import the modules that are installed; anything but their absence is an error."""
    for name in _LIBRARY.split():
        importlib.import_module(name)
    loaded = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        else:
            loaded.append(name)
    return loaded


def _prepare(settings: dict[str, Any]) -> tuple[cage.Host, dict[str, str]]:
    """Find and enter what the server's own process can; the reasons for what is missing."""
    backend, required = settings["backend"], settings["required"]
    paths = readable.readable_paths(settings["readable"])
    missing: dict[str, str] = {}
    layers: list[str] = []
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _prefer_as_victim(proc)

    def layer(name: str, reason: str | None) -> None:
        if reason is None:
            layers.append(name)
        else:
            missing[name] = reason

    server, program = None, None
    if backend == "bubblewrap":
        program = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
        layer("bubblewrap", None if program else "there is no bwrap program in /usr/bin")
    layer("uid", _why_no_uid(backend, paths))
    layer("seccomp", _why_not_in_child(_try_seccomp))
    if "seccomp" in layers:
        seccomp.warm_up()
    if backend == "landlock" or "landlock" in required:
        layer("landlock", None if landlock.version() else "this kernel does not offer Landlock")
    if backend == "namespaces":
        try:
            server = namespaces.enter_server(paths, proc)
            layer("namespaces", None)
        except OSError as error:
            layer("namespaces", str(error))
    layer("limits", _why_no_watch(proc))
    visible = [path for path in sys.path if readable.is_below(os.path.abspath(path), paths)]
    sys.path[:] = visible
    memory = memory_of(proc, os.getpid()) or Memory(0, 0)
    return cage.Host(backend, tuple(layers), paths, server, proc, memory, program), missing


def _why_no_uid(backend: str, paths: list[str]) -> str | None:
    if os.getuid() != 0:
        return None
    if not namespaces.can_drop_identity():
        return "the root user of this place may not become another user"
    if backend != "namespaces" and (closed := readable.entered_by_others(paths)):
        return f"other users cannot enter {closed}, where the interpreter or its libraries lie"
    return None


def _try_seccomp() -> None:
    if not seccomp.supported():
        raise OSError("the system call numbers of this architecture are not known")
    linux.no_new_privileges()
    seccomp.install(None, owns_files=False)


def _why_not_in_child(attempt: Callable[[], None]) -> str | None:
    """Do something irrevocable in a child; the reason why it failed there."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            attempt()
        except BaseException as error:
            os.write(writer, str(error).encode()[:500] or b"unknown")
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answers:
        reason = answers.read().decode("utf-8", "replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return reason or (f"the attempt ended with {status}" if status else None)


def _why_no_watch(proc: int) -> str | None:
    """The watch must see a child and what it uses."""
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    tree = Tree(proc, Memory(0, 1 << 62))
    try:
        usage = tree.usage()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if usage.processes != 1 or usage.memory_bytes == 0:
        return "/proc does not show child processes (hidden, or without their list of children)"
    return None


def _prefer_as_victim(proc: int) -> None:
    """When the machine runs out of memory, a snippet goes before the training job."""
    try:
        descriptor = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=proc)
    except OSError:
        return
    with open(descriptor, "w") as score:
        score.write("1000")
