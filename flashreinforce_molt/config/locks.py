"""Revisions and versions that were resolved once and committed under `recipes/locks/`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

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
