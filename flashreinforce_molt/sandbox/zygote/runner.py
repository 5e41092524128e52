"""The snippet's own process: take code, run it, report. Nothing here is trusted once the first snippet has run."""

from __future__ import annotations

import ast
import builtins
import contextlib
import errno
import linecache
import os
import random
import socket
import sys
import threading
import traceback
import types
from typing import Any, TextIO

from flashreinforce_molt.sandbox import wire
from flashreinforce_molt.sandbox.zygote.confine import Confinement, default_signals

CONTROL = 3
"""File descriptor of the line to the supervisor."""
_FILE = "<snippet>"
_BY_ERRNO = {errno.EFBIG: "file", errno.ENOSPC: "file", errno.EDQUOT: "file", errno.ENOMEM: "memory"}
_RESERVE_BYTES = 1 << 20


def main(confinement: Confinement, limits: dict[str, Any]) -> None:
    """Confine this process and serve snippets until the supervisor hangs up; never returns."""
    control = socket.socket(fileno=CONTROL)
    try:
        default_signals()
        confinement.apply(limits)
        runner = _Runner(control, limits["output_bytes"], confinement.environment())
    except BaseException as error:
        control.sendall(
            wire.pack({"token": "", "status": "sandbox_error", "detail": f"{type(error).__name__}: {error}"})
        )
        os._exit(1)
    control.sendall(wire.pack({"token": "", "status": "ready"}))
    runner.serve()


class _Runner:
    def __init__(self, control: socket.socket, output_bytes: int, environment: dict[str, str]) -> None:
        self._control, self._output_bytes = control, output_bytes
        self._pid = os.getpid()
        self._reserve: bytearray | None = bytearray(_RESERVE_BYTES)
        os.environ.clear()
        os.environ.update(environment)
        self._stdout, self._stderr = _text_stream(1), _text_stream(2)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0, closefd=False), self._stdout, self._stderr
        sys.argv = [_FILE]
        sys.path.insert(0, "")
        _fresh_randomness()
        self._namespace = _fresh_main()

    def serve(self) -> None:
        while (message := wire.receive(self._control)) is not None:
            header, code = message
            report = self._run(code)
            self._flush()
            if os.getpid() != self._pid:  # a child that the snippet forked has come out of its code
                os._exit(0)
            value = report.pop("value", None)
            if value is not None:
                report["has_value"] = True
            payload = (value or "").encode("utf-8", "backslashreplace")[: self._output_bytes + 1]
            self._control.sendall(wire.pack({"token": header["token"], **report}, payload))
        os._exit(0)

    def _run(self, code: bytes) -> dict[str, Any]:
        self._restore_streams()
        try:
            try:
                value = _execute(code.decode("utf-8", "surrogatepass"), self._namespace)
                return {"status": "ok", "value": value}
            finally:
                _join_threads()
        except SystemExit as leaving:
            if leaving.code in (None, 0):
                return {"status": "ok"}
            self._say(f"SystemExit: {leaving.code}\n")
            return {"status": "error"}
        except MemoryError:
            self._reserve = None
            self._say("MemoryError: the snippet wanted more memory than it may use\n")
            self._reserve = bytearray(_RESERVE_BYTES)
            return {"status": "memory"}
        except BaseException as error:
            self._say(_described(error))
            return {
                "status": _BY_ERRNO.get(error.errno or 0, "error") if isinstance(error, OSError) else "error"
            }

    def _restore_streams(self) -> None:
        """An earlier snippet may have closed or replaced them."""
        if self._stdout.closed:
            self._stdout = _text_stream(1)
        if self._stderr.closed:
            self._stderr = _text_stream(2)
        sys.stdout, sys.stderr = self._stdout, self._stderr

    def _say(self, text: str) -> None:
        with contextlib.suppress(
            OSError, ValueError
        ):  # the snippet may have closed it; its status says enough
            self._stderr.write(text[-self._output_bytes :])

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr, self._stdout, self._stderr):
            with contextlib.suppress(BaseException):  # the snippet may have put anything in their place
                stream.flush()


def _execute(source: str, namespace: dict[str, Any]) -> str | None:
    """Run a snippet; the `repr` of its last expression's value, None where there is none."""
    linecache.cache[_FILE] = (len(source), None, source.splitlines(keepends=True), _FILE)
    tree = ast.parse(source, _FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, _FILE, "exec", dont_inherit=True), namespace)
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), _FILE, "eval", dont_inherit=True), namespace)
    return None if value is None else repr(value)


def _described(error: BaseException) -> str:
    """The traceback from the snippet's first line on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != _FILE:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, frames))
    except BaseException:  # an exception whose own text raises
        return f"{type(error).__name__}\n"


def _join_threads() -> None:
    """As an interpreter that ends: wait for threads that are not daemons."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _fresh_main() -> dict[str, Any]:
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    for name in [name for name in sys.modules if name.partition(".")[0] == "flashreinforce_molt"]:
        del sys.modules[name]
    return module.__dict__


def _fresh_randomness() -> None:
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _text_stream(descriptor: int) -> TextIO:
    return open(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", newline="\n", closefd=False
    )
