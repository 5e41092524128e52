"""One self-contained HTML page about one run, or about several side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def write_report(run_dirs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]) -> Path:
    """Write the page and return its path; ValueError names the run that cannot be read and the fix."""
    raise NotImplementedError
