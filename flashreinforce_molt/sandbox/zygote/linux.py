"""The Linux calls that Python does not offer."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from flashreinforce_molt.sandbox.zygote.syscall_numbers import number

_libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = (
    1,
    22,
    24,
    36,
    38,
)
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_READ_ONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_SYS_CLOSE_RANGE, _SYS_MOUNT_SETATTR = 436, 442  # the same on every architecture, as all calls since 424
_LAST_DESCRIPTOR = (1 << 31) - 1


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def syscall(what: str, number: int, *arguments: object) -> int:
    """A system call by number; whole numbers are passed as machine words."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), what)


def prctl(what: str, *arguments: int) -> int:
    words = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:5]]
    return _checked(_libc.prctl(*words), what)


def unshare(flags: int) -> None:
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    _checked(_libc.mount(*encoded, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def make_read_only(path: str, *, devices: bool = False, recursive: bool = True) -> None:
    """Turn a mount (and those below it) read-only, without set-id programs, and without devices."""
    flags = _MOUNT_ATTR_READ_ONLY | _MOUNT_ATTR_NOSUID | (0 if devices else _MOUNT_ATTR_NODEV)
    attributes = struct.pack("QQQQ", flags, 0, 0, 0)
    below = _AT_RECURSIVE if recursive else 0
    syscall(
        f"mount_setattr {path}",
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        path.encode(),
        below,
        attributes,
        len(attributes),
    )


def change_root(new_root: str, old_root: str) -> None:
    """Make `new_root` the root and let go of the old one, which appears at `old_root` below the new for a moment."""
    syscall("pivot_root", number("pivot_root"), new_root.encode(), old_root.encode())
    os.chdir("/")
    moved = "/" + os.path.relpath(old_root, new_root)
    _checked(_libc.umount2(moved.encode(), _MNT_DETACH), "umount of the old root")
    os.rmdir(moved)


def map_own_ids(proc: int, uid: int, gid: int) -> None:
    """In a fresh user namespace: be the same user as before, and nobody else. `proc` is an open /proc."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def empty_bounding_set() -> None:
    """Give up every capability for ever, also across exec; needs CAP_SETPCAP."""
    for capability in range(64):
        if _libc.prctl(*[ctypes.c_ulong(a) for a in (_PR_CAPBSET_DROP, capability, 0, 0, 0)]) < 0:
            return  # past the last one, or not ours to give up: then `drop_capabilities` has the last word


def drop_capabilities() -> None:
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


def capabilities() -> int:
    """Effective and permitted capabilities of this process, as one mask."""
    header, data = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _checked(_libc.capget(header, data), "capget")
    low_effective, low_permitted, _, high_effective, high_permitted, _ = struct.unpack("6I", data.raw)
    return (high_effective | high_permitted) << 32 | low_effective | low_permitted


def die_with_parent(signal_number: int) -> None:
    """Ask the kernel for this signal when the parent ends; a change of user id cancels it."""
    prctl("prctl(PR_SET_PDEATHSIG)", _PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    prctl("prctl(PR_SET_CHILD_SUBREAPER)", _PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    prctl("prctl(PR_SET_NO_NEW_PRIVS)", _PR_SET_NO_NEW_PRIVS, 1)


def install_filter(program: bytes) -> None:
    """Install a seccomp program of 8-byte instructions; needs `no_new_privileges` before."""
    code = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    result = _libc.prctl(
        ctypes.c_ulong(_PR_SET_SECCOMP), ctypes.c_ulong(_SECCOMP_MODE_FILTER), description, ctypes.c_ulong(0)
    )
    _checked(result, "prctl(PR_SET_SECCOMP)")


def close_all_but(keep: Iterable[int]) -> None:
    """Close every file descriptor above 2 that is not named."""
    start = 3
    for descriptor in [*sorted(set(keep)), _LAST_DESCRIPTOR + 1]:
        if descriptor > start:
            syscall("close_range", _SYS_CLOSE_RANGE, start, descriptor - 1, 0)
        start = max(start, descriptor + 1)
