"""What became of one snippet."""

from __future__ import annotations

from dataclasses import dataclass

STATUSES = (
    "ok",
    "error",
    "timeout",
    "memory",
    "output",
    "file",
    "cpu",
    "crashed",
    "cancelled",
    "sandbox_error",
)
"""ok: ran to its end. error: raised, or does not compile. timeout, memory, output, file, cpu: passed that limit.
crashed: its interpreter died. cancelled: the sandbox was closed meanwhile. sandbox_error: our failure, not the
snippet's; count it, never take it for an answer."""


@dataclass(frozen=True)
class Result:
    """One snippet's outcome; everything in it but `status` and `seconds` is untrusted text."""

    status: str
    stdout: str = ""
    stderr: str = ""
    """Holds the traceback when the snippet raised."""
    value: str | None = None
    """`repr` of the last expression, None where the snippet ends in a statement or in None."""
    seconds: float = 0.0
    """Wall time of the snippet, without the wait for a free slot."""
    detail: str = ""
    """Which limit was passed or what failed, in words; empty when all is well."""
    state_lost: bool = False
    """In a session: the interpreter is gone, the next snippet starts with an empty namespace."""

    @property
    def ok(self) -> bool:
        return self.status == "ok"
