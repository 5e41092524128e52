"""Revisions and versions that were resolved once and committed under `recipes/locks/`."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

COMMIT = re.compile(r"[0-9a-f]{40}")
DATASETS, PACKAGES = "datasets.json", "packages.json"


@cache
def lock(name: str) -> dict[str, dict[str, str]]:
    """The entries of one lock file; empty when there is none."""
    checkout = Path(__file__).resolve().parents[2] / "recipes" / "locks" / name
    shipped: Any = checkout
    if not checkout.is_file():
        import importlib.resources

        try:
            shipped = importlib.resources.files("flashreinforce_molt.shipped_recipes") / "locks" / name
        except ModuleNotFoundError:
            return {}
    return json.loads(shipped.read_text("utf-8")) if shipped.is_file() else {}


def dataset_revision(id: str | None, stated: str | None) -> str | None:
    """The stated revision of a data set, else the locked one, else None: it is unpinned."""
    if stated or id is None:
        return stated
    return lock(DATASETS).get(id, {}).get("revision")


def short_revision(revision: str, digits: int = 12) -> str:
    """The first digits of a commit; anything else whole, so that what must be hidden is never a piece of itself."""
    return revision[:digits] if COMMIT.fullmatch(revision) else revision
