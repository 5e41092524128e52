"""How snippets are isolated and what they may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

LAYERS = {
    "namespaces": "own user, process, mount, network, IPC and host-name namespaces with a read-only private root",
    "bubblewrap": "the same, built by the bwrap program for every call",
    "landlock": "the kernel's file access rules: read the interpreter, write nothing",
    "uid": "snippets never run under the id of the root user",
    "seccomp": "only system calls from a list; no sockets",
    "limits": "resource limits, and a watch on memory, processor time and processes of the whole process tree",
}

BACKENDS = {
    "namespaces": ("namespaces", "uid", "seccomp", "limits"),
    "landlock": ("landlock", "uid", "seccomp", "limits"),
    "bubblewrap": ("bubblewrap", "seccomp", "limits"),
}
"""The layers that each backend requires unless `Isolation.required` says otherwise."""

_FIXES = {
    "namespaces": (
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, on "
        "Ubuntu kernel.apparmor_restrict_unprivileged_userns=0), in a container add --security-opt "
        "seccomp=unconfined or --cap-add SYS_ADMIN; Linux 5.12 or newer is needed. Or choose the weaker "
        'Isolation(backend="landlock") in so many words'
    ),
    "bubblewrap": "install bubblewrap (apt-get install bubblewrap) and allow user namespaces",
    "landlock": "boot Linux 5.13 or newer with landlock in its list of security modules (lsm=landlock,...)",
    "uid": (
        "start from an ordinary user, or keep the interpreter outside directories that only root can enter, or leave "
        '"uid" out of Isolation.required to run snippets under the id 0 without capabilities'
    ),
    "seccomp": "use x86_64 or aarch64 and a kernel with CONFIG_SECCOMP_FILTER",
    "limits": "mount /proc where the sandbox can read it",
}


class SandboxUnavailable(RuntimeError):
    """A required layer of isolation is missing on this host; `layer` is its name."""

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"sandbox layer {layer!r} is missing on this host: {reason}. Fix: {_FIXES[layer]}.")
        self.layer = layer


@dataclass(frozen=True)
class Isolation:
    """The walls around a snippet. Nothing falls back by itself: another backend is another choice."""

    backend: str = "namespaces"
    """namespaces (default), landlock (no namespaces, hence no files and no child processes), or bubblewrap."""
    required: tuple[str, ...] | None = None
    """Layers without which the sandbox refuses to start; None takes the backend's own list. An unrequired layer
    is still used where the host has it, but for landlock, which is added to namespaces only when listed."""
    readable: tuple[str, ...] = ()
    """Further absolute paths that snippets may read, beside the interpreter and its libraries."""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"Isolation.backend={self.backend!r} is not one of {', '.join(BACKENDS)}")
        unknown = [layer for layer in self.required or () if layer not in LAYERS]
        if unknown:
            raise ValueError(
                f"Isolation.required names {unknown[0]!r}, which is not one of {', '.join(LAYERS)}"
            )
        if self.required is not None and self.backend not in self.required:
            raise ValueError(
                f"Isolation.required={self.required!r} leaves out {self.backend!r}, the wall of "
                f"Isolation.backend={self.backend!r}; without it nothing would be isolated"
            )
        other = {"namespaces", "bubblewrap"} - {self.backend}
        if clash := sorted(other.intersection(self.layers)):
            raise ValueError(f"Isolation.backend={self.backend!r} does not offer the layer {clash[0]!r}")
        for path in self.readable:
            if not path.startswith("/") or path.strip("/").partition("/")[0] in ("", "proc", "sys", "dev"):
                raise ValueError(
                    f"Isolation.readable holds {path!r}; it takes absolute paths, "
                    "never the whole root, /proc, /sys or /dev"
                )

    @property
    def layers(self) -> tuple[str, ...]:
        """The required layers."""
        return BACKENDS[self.backend] if self.required is None else self.required


@dataclass(frozen=True)
class Limits:
    """What one snippet may use."""

    timeout: float = field(default=10.0, metadata={"least": 0.01})
    """Seconds of wall time, unless `run` says otherwise."""
    cpu_seconds: float | None = field(default=None, metadata={"least": 0.01})
    """Processor time of all its processes together; None is the timeout and one second more."""
    memory_bytes: int = field(default=1 << 30, metadata={"least": 16 << 20})
    """Memory beyond that of the warm interpreter: address space of each process, real use of all together."""
    disk_bytes: int = field(default=64 << 20, metadata={"least": 4096})
    """Size of the private work directory, which lives in memory."""
    files: int = field(default=4096, metadata={"least": 8})
    """Files and directories in the work directory."""
    processes: int = field(default=32, metadata={"least": 1})
    """Processes and threads at once."""
    open_files: int = field(default=128, metadata={"least": 16})
    """Open files of one process."""
    output_bytes: int = field(default=64 << 10, metadata={"least": 256})
    """Kept of stdout, of stderr and of the value each; the rest is dropped with a note."""
    output_kill_bytes: int = field(default=8 << 20, metadata={"least": 4096})
    """A snippet that writes more than this to stdout and stderr is ended with the status `output`."""
    code_bytes: int = field(default=1 << 20, metadata={"least": 1})
    """A longer snippet is refused with the status `error`."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value, least = getattr(self, entry.name), entry.metadata["least"]
            if value is None and entry.name == "cpu_seconds":
                continue
            whole = entry.type == "int"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise ValueError(f"Limits.{entry.name}={value!r} is not a {'whole ' if whole else ''}number")
            if not math.isfinite(value) or value < least:
                raise ValueError(f"Limits.{entry.name}={value!r} must be finite and at least {least}")
