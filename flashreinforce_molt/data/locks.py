"""What was resolved once: `recipes/locks/datasets.json`, a revision and the hash of the prepared list for each data set.

A revision is only ever written after the hub itself named it; an entry that is there is never changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flashreinforce_molt.config.locks import DATASETS, lock
from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.data.lines import parsed
from flashreinforce_molt.telemetry.run_directory import write_atomically

LOCKED_LIST = "list_sha256"


def default_lock_file() -> Path | None:
    """The lock file of this checkout; None when the package is installed elsewhere, where nothing is written."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout / "recipes" / "locks" / DATASETS if (checkout / "setup.cfg").is_file() else None


def read_lock(id: str, path: Path | None = None) -> dict[str, Any]:
    """The entry of a data set (`revision`, `source`, `list_sha256` where known); empty when there is none."""
    path = path or default_lock_file()
    held = lock(DATASETS) if path is None else _held(path)
    return dict(held.get(id, {}))


def write_lock(id: str, entry: dict[str, Any], path: Path) -> bool:
    """Add what the entry knows and the file does not; whether something was written.

    Raises DataError when the file says otherwise.
    """
    held = _held(path)
    known = held.get(id, {})
    for name, value in entry.items():
        if name != "source" and known.get(name, value) != value:
            raise DataError(
                f"{path} locks {id} to {name} {known[name]}, but this is {value}; nothing was changed"
            )
    merged = {**entry, **known}
    if merged == known:
        return False
    write_atomically(path, json.dumps(dict(sorted({**held, id: merged}.items())), indent=2) + "\n")
    lock.cache_clear()
    return True


def _held(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    held = parsed(path.read_bytes(), f"lock file {path}")
    if not isinstance(held, dict) or not all(isinstance(entry, dict) for entry in held.values()):
        raise DataError(f"lock file {path} is no table of data sets")
    return held
