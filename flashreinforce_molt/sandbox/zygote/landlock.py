"""Landlock: the kernel's own rules on which files a process may open."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from flashreinforce_molt.sandbox.zygote import linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ_ONLY = _EXECUTE | _READ_FILE | _READ_DIR
_FIRST_RIGHTS = (1 << 13) - 1
_REFER_SINCE, _TRUNCATE_SINCE, _NETWORK_SINCE, _DEVICE_IOCTL_SINCE, _SCOPES_SINCE = 2, 3, 4, 5, 6
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def version() -> int:
    """The kernel's Landlock version, 0 where it has none."""
    try:
        return linux.syscall("landlock", _CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """Let this process, for good, read `readable`, use `writable` in full, and touch no other file.

    On kernels that offer it, also: no TCP, no signals and no abstract sockets beyond this process's own offspring.
    """
    have = version()
    rights = _file_rights(have)
    network = 3 if have >= _NETWORK_SINCE else 0
    scopes = 3 if have >= _SCOPES_SINCE else 0
    size = 24 if have >= _SCOPES_SINCE else 16 if have >= _NETWORK_SINCE else 8
    attributes = struct.pack("QQQ", rights, network, scopes)[:size]
    rules = linux.syscall("landlock_create_ruleset", _CREATE_RULESET, attributes, size, 0)
    try:
        for path in readable:
            _allow(rules, path, _READ_ONLY)
        for path in writable:
            _allow(rules, path, rights)
        for path in DEVICES:
            _allow(rules, path, _READ_FILE | _WRITE_FILE)
        linux.no_new_privileges()
        linux.syscall("landlock_restrict_self", _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _file_rights(have: int) -> int:
    rights = _FIRST_RIGHTS
    for bit, since in ((13, _REFER_SINCE), (14, _TRUNCATE_SINCE), (15, _DEVICE_IOCTL_SINCE)):
        if have >= since:
            rights |= 1 << bit
    return rights


def _allow(rules: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        granted = rights if os.path.isdir(path) else rights & _ON_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", granted, descriptor))
        linux.syscall(f"landlock rule {path}", _ADD_RULE, rules, 1, rule, 0)
    finally:
        os.close(descriptor)
