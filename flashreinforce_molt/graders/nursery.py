"""The process that grading workers are forked from: no torch, no CUDA, the graders' libraries already imported.

It is started by exec, so nothing of the caller is inherited, imports what the graders need once, and then forks a
worker within milliseconds. It never looks at an answer itself, so hostile input only ever reaches a worker.

Protocol on a SOCK_SEQPACKET socket: the caller sends a Plan, the nursery answers "ready" or why it is not. Then
`fork` with a descriptor answers with a pid, and `kill PID` with the exit code of that worker, which is gone by then.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import resource
import select
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection

from flashreinforce_molt.sandbox.zygote import landlock, seccomp

MAX_MESSAGE = 1 << 17
_PR_SET_PDEATHSIG = 1


def main(control: socket.socket) -> None:
    """Body of the process; ends, and its workers with it, when the caller closes its end or dies."""
    caller = os.getppid()
    plan = json.loads(control.recv(MAX_MESSAGE))
    sys.path[:] = plan["path"]
    sys.dont_write_bytecode = True
    try:
        for module in plan["preload"]:
            importlib.import_module(module)
    except BaseException:
        control.send(traceback.format_exc(limit=-3)[-4000:].encode())
        return
    gc.collect()
    gc.freeze()  # keeps what was imported in pages that the workers share
    control.send(b"ready")
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while os.getppid() == caller:
        if not poll.poll(1000):
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
        if message == b"fork":
            control.send(str(_fork_worker(descriptors[0], control, plan["memory_mb"])).encode())
        elif message.startswith(b"kill "):
            control.send(str(_kill(int(message[5:]))).encode())
        else:  # the caller closed its end
            return


def _fork_worker(descriptor: int, control: socket.socket, memory_mb: int) -> int:
    nursery = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    connection = Connection(descriptor)
    try:
        control.close()
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == nursery:
            _limit_resources(memory_mb)
            _wall_in()
            _serve(connection)
    except BaseException as error:  # not of a call: those are answered
        connection.send_bytes(json.dumps(["error", f"the worker failed: {_describe(error)}"]).encode())
    finally:
        os._exit(1)


def _kill(pid: int) -> int:
    """Exit code of a worker that is dead now, negative when a signal ended it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # it and what it started; fails before its setsid, and when it is dead
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _limit_resources(memory_mb: int) -> None:
    with open("/proc/self/statm") as file:
        address_space = int(file.read().split()[0]) * resource.getpagesize() + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a grader has nothing to write to a file


def _wall_in() -> None:
    """Where the kernel can: no other program, no socket, no file changed, whatever a scorer is talked into."""
    with contextlib.suppress(OSError):  # a kernel without it
        landlock.restrict(["/"], [])
    if seccomp.supported():
        with contextlib.suppress(OSError):
            seccomp.install(os.getpid(), owns_files=True)


def _serve(connection: Connection) -> None:
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            function, arguments = pickle.loads(request)
            reply = json.dumps(["ok", function(*arguments)])
        except MemoryError:
            reply = json.dumps(["memory", ""])
        except BaseException as error:
            reply = json.dumps(["error", _describe(error)])
        connection.send_bytes(reply.encode())


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {str(error)[:500]}"
    except BaseException:
        return type(error).__name__
