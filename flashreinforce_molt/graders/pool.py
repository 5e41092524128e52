"""Run another library's scorer on hostile text: in worker processes that can be killed and are replaced at once.

    async with GradingPool(preload=["reasoning_gym"]) as pool:
        score = await pool.call(score_answer, item, answer)

A signal or a thread cannot stop a scorer that sits in one long C call, and a scorer may take the machine's memory
with it; so each worker has a time limit, a memory limit and is killed with SIGKILL. Where the kernel can (seccomp,
Landlock) a worker also starts no program, opens no socket and changes no file, since some scorers evaluate text as
Python. That is a second line: code that is meant to run belongs into `flashreinforce_molt.sandbox`.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import queue
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from flashreinforce_molt.graders.nursery import MAX_MESSAGE

Result = TypeVar("Result")

_START_LIMIT_S = 120.0
_BOOTSTRAP = (
    "import socket, sys; sys.path[:] = sys.argv[2:]; "
    "from flashreinforce_molt.graders.nursery import main; main(socket.socket(fileno=int(sys.argv[1])))"
)
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "OPENBLAS_CORETYPE")
_SET_VARIABLES = {
    "PYTHONHASHSEED": "0",  # the same verdict in every worker
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


class GradingError(RuntimeError):
    """There is no result: the call raised, its worker died twice, or workers cannot be started."""


class GradingTimeout(GradingError):
    """The call did not finish within the limit, and its worker was killed."""


class GradingPool:
    """Persistent worker processes, one call at a time each; usable from any event loop and any thread.

    `timeout` is in seconds and counts from the moment that a worker takes the call. `memory_mb` is what a worker may
    allocate beyond what it starts with. `preload` names modules that are imported once, before any call is timed.
    """

    def __init__(
        self, *, workers: int = 2, timeout: float = 3.0, memory_mb: int = 1024, preload: Sequence[str] = ()
    ) -> None:
        if workers < 1 or timeout <= 0 or memory_mb < 1:
            raise ValueError(
                f"workers={workers}, timeout={timeout} and memory_mb={memory_mb} must be positive"
            )
        self.timeout = timeout
        self.timeouts = 0
        """Calls that ran into the limit."""
        self.deaths = 0
        """Workers that died on their own or ran out of memory."""
        self._memory_mb, self._preload = memory_mb, list(preload)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        self._lock = threading.Lock()
        self._nursery: _Nursery | None = None
        self._closed = False

    def start(self) -> None:
        """Bring the workers up in the background; returns at once. The first call does it otherwise."""
        with self._lock:
            if self._closed:
                raise GradingError("the grading pool is closed")
            if self._nursery is None:
                self._nursery = _Nursery(self._preload, self._memory_mb)
                for thread in self._threads:
                    thread.start()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Queue `function(*arguments)`; the future ends with its result, or with GradingError.

        The function must be importable by name in another process, its arguments picklable, and its result made of
        None, bool, numbers, text, lists and dicts: no object of a worker that read hostile text is ever rebuilt here.
        """
        if function.__module__ == "__main__":
            raise ValueError(
                f"{function.__qualname__} lives in __main__; a worker can only import a module's function"
            )
        job = _Job(pickle.dumps((function, arguments)))
        self.start()
        self._jobs.put(job)
        return job.future

    async def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """`await` the result of `submit`. Cancelling gives up a call that waits; one that runs ends by its limit."""
        return await asyncio.wrap_future(self.submit(function, *arguments))

    def close(self) -> None:
        """Stop every worker and fail what still waits, running calls included. Idempotent."""
        with self._lock:
            self._closed = True
            nursery, self._nursery = self._nursery, None
            if nursery is not None:
                nursery.close()
        for _ in self._threads:
            self._jobs.put(None)
        if nursery is not None:
            for thread in self._threads:
                thread.join()
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_exception(GradingError("the grading pool was closed"))

    async def __aenter__(self) -> GradingPool:
        self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)

    def _serve(self) -> None:
        seat = _Seat()
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(self._run(seat, job.request))
            except BaseException as error:
                job.future.set_exception(error)

    def _run(self, seat: _Seat, request: bytes) -> Any:
        """Result of one call. A worker that dies under it is replaced, and the call tried once more."""
        for last_try in (False, True):
            worker = seat.worker = seat.worker or self._new_worker()
            try:
                worker.connection.send_bytes(request)
                if not worker.connection.poll(self.timeout):
                    raise BlockingIOError
                status, value = json.loads(worker.connection.recv_bytes())
            except BlockingIOError:  # raised here, or by the socket's own time limits
                seat.vacate()
                self._count(timeouts=1)
                raise GradingTimeout(f"no result within {self.timeout:g} s") from None
            except (EOFError, OSError, ValueError):  # ValueError: what it sent is no reply
                code = seat.vacate()
                if self._closed:
                    raise GradingError("the grading pool was closed") from None
                self._count(deaths=1)
                if last_try:
                    raise GradingError(
                        f"the worker died twice, the second time with exit code {code}"
                    ) from None
                continue
            break
        if status == "memory":
            seat.vacate()
            self._count(deaths=1)
            raise GradingError(f"the call needs more than {self._memory_mb} MB of memory")
        if status == "error":
            raise GradingError(value)
        return value

    def _new_worker(self) -> _Worker:
        nursery = self._living_nursery()
        try:
            return nursery.fork(self.timeout)
        except (EOFError, OSError):  # somebody killed it
            return self._living_nursery(instead_of=nursery).fork(self.timeout)

    def _living_nursery(self, instead_of: _Nursery | None = None) -> _Nursery:
        with self._lock:
            if self._nursery is None:
                raise GradingError("the grading pool was closed")
            if self._nursery is instead_of:
                self._nursery.close()
                self._nursery = _Nursery(self._preload, self._memory_mb)
            return self._nursery

    def _count(self, *, timeouts: int = 0, deaths: int = 0) -> None:
        with self._lock:
            self.timeouts += timeouts
            self.deaths += deaths


class _Job:
    def __init__(self, request: bytes) -> None:
        self.request = request
        self.future: Future[Any] = Future()


class _Seat:
    """The worker of one thread, once there is one."""

    worker: _Worker | None = None

    def vacate(self) -> int | None:
        """Kill the worker; its exit code, or None when it is unknown."""
        assert self.worker is not None
        worker, self.worker = self.worker, None
        return worker.kill()


class _Worker:
    def __init__(self, nursery: _Nursery, pid: int, connection: Connection) -> None:
        self._nursery, self._pid, self.connection = nursery, pid, connection

    def kill(self) -> int | None:
        """Kill it; its exit code, or None when the nursery has gone, and the worker with it."""
        self.connection.close()
        try:
            return self._nursery.kill(self._pid)
        except (EOFError, OSError):
            return None


class _Nursery:
    """The caller's side of `flashreinforce_molt.graders.nursery`."""

    def __init__(self, preload: Sequence[str], memory_mb: int) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._ready = False
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                env=kept | _SET_VARIABLES,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        plan = {"path": sys.path, "preload": list(preload), "memory_mb": memory_mb}
        self._control.send(json.dumps(plan).encode())

    def fork(self, timeout: float) -> _Worker:
        with self._lock:
            if not self._ready:
                self._wait_until_ready()
            ours, theirs = socket.socketpair()
            limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            with theirs:
                socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
            return _Worker(self, int(self._answer()), Connection(ours.detach()))

    def kill(self, pid: int) -> int:
        with self._lock:
            self._control.send(b"kill %d" % pid)
            return int(self._answer())

    def close(self) -> None:
        """End the process and its workers now."""
        self._process.kill()  # the kernel kills the workers with it
        self._process.wait()
        with self._lock:  # a thread that waits for an answer reads the end of the connection first
            self._control.close()

    def _wait_until_ready(self) -> None:
        self._control.settimeout(_START_LIMIT_S)
        try:
            answer = self._answer()
        except TimeoutError:
            raise GradingError(f"grading workers did not start within {_START_LIMIT_S:g} s") from None
        finally:
            self._control.settimeout(None)
        if answer != b"ready":
            raise GradingError(f"grading workers cannot start:\n{answer.decode(errors='replace')}")
        self._ready = True

    def _answer(self) -> bytes:
        answer = self._control.recv(MAX_MESSAGE)
        if not answer:
            raise EOFError("the nursery has gone")
        return answer
