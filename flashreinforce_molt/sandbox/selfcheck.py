"""Proof that the walls stand: a snippet that tries them, and what must come of it."""

from __future__ import annotations

import ast

from flashreinforce_molt.sandbox.config import SandboxUnavailable
from flashreinforce_molt.sandbox.result import Result

CHECK = b"""
import ctypes, os, resource, struct

def outcome(action, *arguments):
    try:
        action(*arguments)
        return 0
    except OSError as error:
        return error.errno

def probe():
    libc = ctypes.CDLL(None, use_errno=True)
    capabilities = ctypes.create_string_buffer(24)
    libc.capget(struct.pack("Ii", 0x20080522, 0), capabilities)
    import socket
    return {
        "capabilities": any(struct.unpack("6I", capabilities.raw)[i] for i in (0, 1, 3, 4)),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
        "memory": resource.getrlimit(resource.RLIMIT_AS)[1],
        "filter": libc.prctl(21, 0, 0, 0, 0),
        "no_new_privileges": libc.prctl(39, 0, 0, 0, 0),
        "socket": outcome(socket.socket),
        "uid": os.getuid(),
        "pid": os.getpid(),
        "processes_seen": os.path.exists("/proc/self"),
        "root": outcome(os.listdir, "/"),
        "write": outcome(os.mkdir, "/sandbox-probe"),
        "host": os.uname().nodename,
        "library": outcome(os.listdir, os.path.dirname(os.__file__)),
    }

probe()
"""


def verify(result: Result, layers: tuple[str, ...]) -> None:
    """Raises SandboxUnavailable naming the layer that claims to be there and is not."""
    if result.status != "ok" or result.value is None:
        said = result.detail or result.stderr.strip()[-500:] or result.status
        raise RuntimeError(f"the sandbox could not run its first snippet: {said}")
    seen = ast.literal_eval(result.value)
    for layer, name, holds in _expectations(seen, layers):
        if layer in layers and not holds:
            raise SandboxUnavailable(layer, f"it was set up but does not hold ({name}={seen[name]!r} inside)")
    if seen["library"]:
        raise RuntimeError(
            "snippets cannot read the interpreter's own library; name its place in Isolation.readable"
        )


def _expectations(seen: dict[str, int], layers: tuple[str, ...]) -> list[tuple[str, str, bool]]:
    checks = [
        ("seccomp", "filter", seen["filter"] == 2),
        ("seccomp", "socket", seen["socket"] != 0),
        ("uid", "uid", seen["uid"] != 0),
        ("landlock", "root", seen["root"] != 0),
        ("landlock", "write", seen["write"] != 0),
        ("limits", "core", 0 <= seen["core"] <= 1),
        ("limits", "memory", seen["memory"] > 0),
        ("limits", "capabilities", not seen["capabilities"]),
        ("limits", "no_new_privileges", seen["no_new_privileges"] == 1),
    ]
    for wall in ("namespaces", "bubblewrap"):
        checks += [
            (wall, "pid", seen["pid"] < 100),
            (wall, "processes_seen", not seen["processes_seen"]),
            (wall, "write", seen["write"] != 0),
            (wall, "host", seen["host"] == "sandbox"),
        ]
    return checks
