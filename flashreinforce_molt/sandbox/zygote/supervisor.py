"""One process per call or session, outside the walls: it feeds the snippet, collects, measures and ends it."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from flashreinforce_molt.sandbox import wire
from flashreinforce_molt.sandbox.zygote import cage
from flashreinforce_molt.sandbox.zygote.watch import Tree, Usage

_WATCH_SECONDS = 0.05
_SETUP_SECONDS = 30.0
_READ_BYTES = 1 << 16
_REPORTED = frozenset({"ok", "error", "memory", "file"})
"""What a snippet's process may say of itself; everything else is for the supervisor to see."""


@dataclass
class _Outcome:
    status: str
    detail: str = ""
    value: bytes | None = None
    lost: bool = False
    """The snippet's process is gone, or must go."""


@dataclass
class _Stream:
    """One of the snippet's outputs: its first and its last half are kept, what lies between is counted."""

    keep: int
    head: bytearray = field(default_factory=bytearray)
    seen: int = 0
    _latest: bytearray = field(default_factory=bytearray)

    def take(self, data: bytes) -> None:
        self.seen += len(data)
        room = max(0, self.keep // 2 - len(self.head))
        self.head += data[:room]
        self._latest += data[room:]
        if len(self._latest) > 4 * self.keep:
            del self._latest[: -self.keep]

    @property
    def tail(self) -> bytes:
        return bytes(self._latest[-(self.keep - self.keep // 2) :])

    @property
    def dropped(self) -> int:
        return self.seen - len(self.head) - len(self.tail)


class Hangup(Exception):
    """The client has gone."""


def supervise(host: cage.Host, client: socket.socket, slot: int) -> None:
    """Serve one client connection until it ends or the snippet's process has to.

    The walls are built when the client says the limits, which may be long before it has a snippet.
    """
    os.setsid()
    preparation = wire.receive(client)
    if preparation is None:
        return
    limits = preparation[0]["limits"]
    tree = Tree(host.proc, host.memory)
    try:
        lines = cage.open_cage(host, slot, limits, {client.fileno()})
        supervisor = _Supervisor(tree, lines, client, limits)
        supervisor.wait_until_ready()
        while (request := wire.receive(client)) is not None:
            header, code = request
            tree.thaw()
            outcome, streams, seconds = supervisor.run(header, code)
            if header["last"] or outcome.lost or not tree.freeze():
                tree.end()
                outcome.lost = True
            client.sendall(_reply(outcome, streams, seconds, limits["output_bytes"]))
            if outcome.lost:
                return
    except Hangup:
        pass
    finally:
        tree.end()


class _Supervisor:
    def __init__(self, tree: Tree, lines: cage.Lines, client: socket.socket, limits: dict[str, Any]) -> None:
        self._tree, self._lines, self._client, self._limits = tree, lines, client, limits
        self._token = ""
        """Of the snippet that runs; unknown before it does, so that none can answer for a later one."""
        self._poll = select.poll()
        self._poll.register(client, select.POLLRDHUP)  # not for input: the first request may wait already
        self._poll.register(lines.control, select.POLLIN)
        self._poll.register(lines.handle, select.POLLIN)
        for descriptor in (lines.stdout, lines.stderr):
            self._poll.register(descriptor, select.POLLIN)

    def wait_until_ready(self) -> None:
        """Raises RuntimeError with the reason when the walls could not be built."""
        outcome, streams = self._exchange(b"", _SETUP_SECONDS, None, 1 << 16, 1 << 16)
        if outcome.status != "ready":
            said = streams[self._lines.stderr].head.decode("utf-8", "replace").strip()
            raise RuntimeError(
                f"the walls of the call could not be built: {outcome.detail or said or outcome.status}"
            )

    def run(self, header: dict[str, Any], code: bytes) -> tuple[_Outcome, list[_Stream], float]:
        """Run one snippet. Raises RuntimeError when its process was ended while it waited for one."""
        handle = select.poll()
        handle.register(self._lines.handle, select.POLLIN)
        if handle.poll(0):
            raise RuntimeError(
                "the interpreter was ended while it waited; the machine may be short of memory"
            )
        self._token = os.urandom(8).hex()
        start = time.monotonic()
        message = wire.pack({"token": self._token}, code)
        outcome, streams = self._exchange(message, header["timeout"], header, **_output_limits(self._limits))
        return outcome, [streams[self._lines.stdout], streams[self._lines.stderr]], time.monotonic() - start

    def _exchange(
        self, message: bytes, timeout: float, header: dict[str, Any] | None, keep: int, kill: int
    ) -> tuple[_Outcome, dict[int, _Stream]]:
        """Send to the snippet's process and listen until it reports, ends, or passes a limit."""
        lines = self._lines
        streams = {lines.stdout: _Stream(keep), lines.stderr: _Stream(keep)}
        inbox = wire.Inbox(keep + 4096)
        unsent = memoryview(message)
        deadline = time.monotonic() + timeout
        watch_at = time.monotonic() + _WATCH_SECONDS
        cpu_before = self._usage().cpu_seconds if header else 0.0
        while True:
            self._poll.modify(lines.control, select.POLLIN | (select.POLLOUT if unsent else 0))
            now = time.monotonic()
            if now >= deadline:
                return _Outcome("timeout", f"ended after {timeout:g} s", lost=True), streams
            if header is not None and now >= watch_at:
                if passed := self._passed_limit(header, cpu_before):
                    return passed, streams
                watch_at = now + _WATCH_SECONDS
            until = deadline if header is None else min(deadline, watch_at)
            events = dict(self._poll.poll(max(0.0, until - now) * 1000 + 0.5))
            if self._client.fileno() in events:
                raise Hangup
            for descriptor in streams:
                if descriptor in events and not self._drain(descriptor, streams[descriptor], once=True):
                    self._poll.unregister(descriptor)
            if sum(stream.seen for stream in streams.values()) > kill:
                return _Outcome("output", f"wrote more than {kill} bytes", lost=True), streams
            if events.get(lines.control.fileno(), 0) & select.POLLOUT:
                unsent = unsent[self._send(unsent) :]
            outcome = self._read_report(inbox) if lines.control.fileno() in events else None
            if outcome is None and lines.handle in events:
                outcome = self._ended()
            if outcome is not None:
                for descriptor, stream in streams.items():
                    self._drain(descriptor, stream, limit=kill)
                return outcome, streams

    def _send(self, data: memoryview) -> int:
        try:
            return self._lines.control.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # nobody listens; its end will be noticed

    def _read_report(self, inbox: wire.Inbox) -> _Outcome | None:
        try:
            data = self._lines.control.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            # Closed, by the snippet or by its end. The end brings a better reason, within a moment.
            ends = select.poll()
            ends.register(self._lines.handle, select.POLLIN)
            if ends.poll(200):
                return self._ended()
            return _Outcome("crashed", "cut its line to the sandbox", lost=True)
        try:
            for header, payload in inbox.feed(data):
                if header.get("token") == self._token:
                    return self._outcome(header, payload)
        except Exception as error:  # whatever a hostile message can set off is the snippet's doing
            return _Outcome("crashed", f"wrote nonsense to the sandbox: {error}"[:200], lost=True)
        return None

    def _outcome(self, header: dict[str, Any], payload: bytes) -> _Outcome:
        status = header.get("status")
        if not self._token:  # no foreign code has run yet
            return _Outcome(str(status), str(header.get("detail", "")))
        if status not in _REPORTED:
            raise ValueError(f"status {status!r:.50}")
        return _Outcome(status, value=payload if header.get("has_value") else None)

    def _ended(self) -> _Outcome:
        """The process ended without a report."""
        info = os.waitid(os.P_PIDFD, self._lines.handle, os.WEXITED | os.WNOWAIT)
        assert info is not None
        code = info.si_status if info.si_code == os.CLD_EXITED else 128 + info.si_status
        if code <= 128:
            return _Outcome(
                "crashed", f"the interpreter left with exit code {code} before the snippet ended", lost=True
            )
        number = code - 128
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return _Outcome("crashed", f"the interpreter was ended by {name}", lost=True)

    def _usage(self) -> Usage:
        usage = self._tree.usage()
        if not usage.processes:
            raise RuntimeError("the watch over the snippet sees no process; is /proc mounted with hidepid?")
        return usage

    def _passed_limit(self, header: dict[str, Any], cpu_before: float) -> _Outcome | None:
        usage, limits = self._usage(), self._limits
        if usage.memory_bytes > limits["memory_bytes"]:
            return _Outcome("memory", f"used more than {limits['memory_bytes']} bytes in all", lost=True)
        if usage.cpu_seconds - cpu_before > header["cpu_seconds"]:
            return _Outcome("cpu", f"used more than {header['cpu_seconds']:g} s of processor time", lost=True)
        if usage.processes > limits["processes"] + 3:
            return _Outcome("crashed", f"started more than {limits['processes']} processes", lost=True)
        return None

    def _drain(self, descriptor: int, stream: _Stream, *, once: bool = False, limit: int = 0) -> bool:
        """Read what is there; False at the end of the stream."""
        while True:
            try:
                data = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return True
            stream.take(data)
            if not data:
                return False
            if once or stream.seen > limit:
                return True


def _output_limits(limits: dict[str, Any]) -> dict[str, int]:
    return {"keep": limits["output_bytes"], "kill": limits["output_kill_bytes"]}


def _reply(outcome: _Outcome, streams: list[_Stream], seconds: float, keep: int) -> bytes:
    value = outcome.value
    parts = [part for stream in streams for part in (bytes(stream.head), stream.tail)]
    if value is not None:
        parts.append(value[:keep])
    header = {
        "status": outcome.status,
        "detail": outcome.detail,
        "seconds": seconds,
        "state_lost": outcome.lost,
        "lengths": [len(part) for part in parts],
        "dropped": [stream.dropped for stream in streams],
        "value_cut": value is not None and len(value) > keep,
    }
    return wire.pack(header, b"".join(parts))
