"""The walls as the bwrap program builds them, with a fresh interpreter inside."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from flashreinforce_molt.sandbox.zygote.namespaces import WORK

_CODE = "/sandbox-code"
_PACKAGE = "flashreinforce_molt"
_VIRTUAL_BYTES = 512 << 20
"""Address space of an interpreter that has imported what a snippet commonly wants."""


def command(program: str, readable: Sequence[str], settings: str, disk_bytes: int) -> list[str]:
    """The command line that starts the snippet's process; descriptors 0 to 3 pass through."""
    package = Path(__file__).parents[2]
    words = [
        program,
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
    ]
    words += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--hostname", "sandbox"]
    words += ["--size", str(disk_bytes), "--tmpfs", WORK]  # before what may lie below it
    for path in readable:
        words += ["--ro-bind", path, path]
    for part in ("__init__.py", "sandbox"):
        words += ["--ro-bind", str(package / part), f"{_CODE}/{_PACKAGE}/{part}"]
    for device in ("null", "zero", "random", "urandom"):
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    words += ["--symlink", WORK, "/dev/shm"]
    words += ["--remount-ro", "/", "--chdir", WORK, "--setenv", "PYTHONHASHSEED", "0"]
    words += ["--setenv", "PYTHONDONTWRITEBYTECODE", "1", "--setenv", "LANG", "C.UTF-8", "--"]
    start = f"import sys; sys.path[0] = {_CODE!r}; from {_PACKAGE}.sandbox.zygote import bubblewrap; bubblewrap.main()"
    return [*words, sys.executable, "-c", start, settings]


def main() -> None:
    """Inside the walls: become the snippet's process."""
    settings = json.loads(sys.argv[1])
    from flashreinforce_molt.sandbox.zygote import runner
    from flashreinforce_molt.sandbox.zygote.confine import Confinement

    sys.path.pop(0)
    confinement = Confinement(
        work=WORK,
        layers=[layer for layer in settings["layers"] if layer == "seccomp"],
        readable=(),
        own_processes=True,
        owns_files="uid" not in settings["layers"],  # then root's id outside owns the devices
        virtual_bytes=_VIRTUAL_BYTES,
    )
    os.setpgid(0, 0)
    runner.main(confinement, settings["limits"])
