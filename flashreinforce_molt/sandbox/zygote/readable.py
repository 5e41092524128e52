"""What a snippet may read: the interpreter, its libraries, and what the user names; no project, no home, no data."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

_SYSTEM = (
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/bin",
    "/lib",
    "/lib64",
    "/bin",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/alternatives",
    "/usr/share/zoneinfo",
)
_PREFIX_PARTS = ("bin", "lib", "lib64", "pyvenv.cfg")


def readable_paths(extra: Iterable[str] = ()) -> list[str]:
    """Existing paths, none below another. A checkout on the search path (an editable install) is not among them."""
    prefixes = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    wanted = [*_SYSTEM, *extra]
    wanted += [os.path.join(prefix, part) for prefix in prefixes for part in _PREFIX_PARTS]
    wanted += [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    named = {os.path.abspath(path) for path in wanted if os.path.exists(path)}
    both = named | {os.path.realpath(path) for path in named}
    kept: list[str] = []
    for path in sorted(both, key=lambda path: (path.count("/"), path)):
        if not is_below(path, kept):
            kept.append(path)
    return kept


def is_below(path: str, roots: Iterable[str]) -> bool:
    """Whether a path is one of these or lies below one, by its spelling."""
    return any(path == root or path.startswith(root + "/") for root in roots)


def entered_by_others(paths: Iterable[str]) -> str | None:
    """The first directory on the way to one of these that only its owner can enter, None when there is none."""
    for path in paths:
        while path != "/":
            if os.path.isdir(path) and not os.stat(path).st_mode & 0o001:
                return path
            path = os.path.dirname(path)
    return None
