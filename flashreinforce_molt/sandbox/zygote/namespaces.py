"""Private views of the system: one set for the server, another for every call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from flashreinforce_molt.sandbox.zygote import linux
from flashreinforce_molt.sandbox.zygote.landlock import DEVICES

WORK = "/tmp"
"""The work directory of a snippet: memory, private to the call."""
HOST_NAME = "sandbox"
_ASIDE = "/aside"

_ROOT = "/proc"  # covered by the new root while that is built; a directory that exists and that no library lives in
_SERVER_FLAGS = linux.NEWNS | linux.NEWNET | linux.NEWIPC | linux.NEWUTS
_CALL_FLAGS = linux.NEWNS | linux.NEWNET | linux.NEWIPC | linux.NEWPID

# Ids that no distribution, service manager or container engine hands out, then those for when ids are scarce.
_UIDS, _UID_COUNT = 1_900_000_000, 200_000_000
_SCARCE_UIDS, _SCARCE_UID_COUNT = 60_578, 600


@dataclass(frozen=True)
class Server:
    """What the namespaces of the server can do for its calls."""

    privileged: bool
    """Without a user namespace of its own, so that the server may switch to any user."""
    below_work: tuple[tuple[str, str], ...]
    """Read-only mounts, and where below the work directory a call needs them: an interpreter that lives there."""


def enter_server(readable: Iterable[str], proc: int) -> Server:
    """Give this process a read-only root that holds only `readable`, no network and no /proc."""
    try:
        linux.unshare(_SERVER_FLAGS)
        privileged = True
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        linux.unshare(_SERVER_FLAGS | linux.NEWUSER)
        linux.map_own_ids(proc, uid, gid)
        privileged = False
    import socket

    socket.sethostname(HOST_NAME)
    return Server(privileged, _enter_private_root(readable))


def enter_call(server: Server, proc: int, *, disk_bytes: int, files: int) -> None:
    """Namespaces and the work directory of one call; the next child is the first of its process namespace."""
    if server.privileged:
        linux.unshare(_CALL_FLAGS)
    else:  # a user namespace of its own, so that the process limit counts this call alone
        uid, gid = os.getuid(), os.getgid()
        linux.unshare(_CALL_FLAGS | linux.NEWUSER)
        linux.map_own_ids(proc, uid, gid)
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("tmpfs", WORK, "tmpfs", flags, f"size={disk_bytes},nr_inodes={files},mode=1777")
    for stash, path in server.below_work:
        os.makedirs(path) if os.path.isdir(stash) else _touch(path)
        linux.mount(stash, path, None, linux.MS_BIND | linux.MS_REC)


def drop_identity(slot: int) -> None:
    """Leave the root user for an id that only this call has, and give up every capability."""
    linux.empty_bounding_set()
    if os.getuid() == 0:
        _switch_user(slot)
    linux.drop_capabilities()


def can_drop_identity() -> bool:
    """Whether the root user of this place may become somebody else; tried in a child."""
    child = os.fork()
    if child == 0:
        try:
            _switch_user(0)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _switch_user(slot: int) -> None:
    last_error: OSError | None = None
    for first, count in ((_UIDS, _UID_COUNT), (_SCARCE_UIDS, _SCARCE_UID_COUNT)):
        uid = first + slot % count
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return
        except OSError as error:
            last_error = error
    assert last_error is not None
    raise last_error


def _enter_private_root(readable: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Returns what lies below the work directory; it is mounted aside, since each call covers that directory."""
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", _ROOT, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")
    aside: list[tuple[str, str]] = []
    for path in readable:
        target = path
        if path.startswith(WORK + "/"):
            target = f"{_ASIDE}/{len(aside)}"
            aside.append((target, path))
        _bind(path, _ROOT + target)
        linux.make_read_only(_ROOT + target)
    for path in DEVICES:
        _bind(path, _ROOT + path)
        linux.make_read_only(_ROOT + path, devices=True)
    for directory in (WORK, "/old"):
        os.mkdir(_ROOT + directory)
    os.symlink(WORK, _ROOT + "/dev/shm")
    linux.change_root(_ROOT, _ROOT + "/old")
    linux.make_read_only("/", recursive=False)
    return tuple(aside)


def _bind(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True) if os.path.isdir(source) else _touch(target)
    linux.mount(source, target, None, linux.MS_BIND | linux.MS_REC)


def _touch(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w"):
        pass
