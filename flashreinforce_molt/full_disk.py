"""A disk that is full, said in words that help."""

from __future__ import annotations

import errno
from pathlib import Path

from safetensors import SafetensorError

_NUMBERS = (errno.ENOSPC, errno.EDQUOT)


def is_full_disk(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that a disk or a quota has no room left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NUMBERS:
            return True
        # safetensors writes by itself and gives the system's error as text only
        if isinstance(error, SafetensorError) and any(
            f"os error {number})" in str(error) for number in _NUMBERS
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def full_disk(run_dir: Path, kept: str) -> OSError:
    """What to free, and what is safe."""
    used = {
        name: sum(file.stat().st_size for file in (run_dir / name).rglob("*") if file.is_file())
        for name in ("checkpoints", "trajectories", "nonfinite")
    }
    sizes = ", ".join(f"{name}/ {size / 1e6:,.1f} MB" for name, size in used.items() if size)
    return OSError(
        f"no space left on the disk of {run_dir} ({sizes or 'nothing of this run is there yet'}); free some, or lower "
        f"checkpoint.keep or telemetry.dump_trajectories; {kept}"
    )
