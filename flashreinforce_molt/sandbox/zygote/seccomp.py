"""Which system calls a snippet may make: a list of what Python needs, everything else fails."""

from __future__ import annotations

import errno
import functools
import platform
import socket
import struct
from collections.abc import Iterable

from flashreinforce_molt.sandbox.zygote import linux
from flashreinforce_molt.sandbox.zygote.syscall_numbers import AUDIT_ARCH, NUMBERS

_ALWAYS = """
read write open openat close stat fstat lstat newfstatat statx poll ppoll lseek mmap mprotect munmap brk pread64
pwrite64 readv writev preadv pwritev preadv2 pwritev2 access faccessat faccessat2 pipe pipe2 select pselect6 mremap
msync mincore madvise dup dup2 dup3 pause nanosleep clock_nanosleep getitimer alarm setitimer getpid gettid getppid
getpgrp getpgid getsid setsid setpgid sendfile sendto recvfrom sendmsg recvmsg shutdown getsockname getpeername
getsockopt setsockopt execve exit exit_group wait4 waitid uname flock fsync fdatasync getdents getdents64 getcwd chdir
fchdir umask gettimeofday getrlimit setrlimit getrusage sysinfo times getuid getgid geteuid getegid getresuid getresgid
getgroups capget rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack
statfs fstatfs arch_prctl sched_yield sched_getaffinity sched_getparam sched_getscheduler
sched_get_priority_max sched_get_priority_min sched_rr_get_interval getpriority time futex futex_waitv set_tid_address
set_robust_list rseq restart_syscall clock_gettime clock_getres epoll_create epoll_create1 epoll_ctl epoll_wait
epoll_pwait epoll_pwait2 eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime timer_create timer_settime
timer_gettime timer_getoverrun timer_delete signalfd signalfd4 fadvise64 readahead getrandom getcpu membarrier splice
tee vmsplice copy_file_range close_range readlink readlinkat getxattr lgetxattr fgetxattr listxattr llistxattr
flistxattr ftruncate rename renameat renameat2 mkdir mkdirat rmdir creat link linkat unlink unlinkat symlink symlinkat
mknod mknodat fallocate sync_file_range
"""

_WITH_OWN_PROCESSES = "fork vfork kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo"
"""Harmless only in a process namespace: Landlock governs no signals before Linux 6.12."""

_ON_OWN_FILES = """
truncate chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat setxattr
lsetxattr fsetxattr removexattr lremovexattr fremovexattr
"""
"""Harmless only for who owns no file of the host within sight: Landlock does not govern mode, owner and times, and
bubblewrap shows devices that belong to root."""

_IOCTLS = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""

_FCNTLS_REFUSED = (8, 10, 15, 1024, 1026)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY: signals to others, and holding up those who open a file."""
_PR_SET_PDEATHSIG = 1
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_X32_BIT = 0x40000000

# cBPF: load a word of struct seccomp_data, compare it, return a verdict.
_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = (
    0x20,
    0x15,
    0x25,
    0x35,
    0x45,
    0x06,
)
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_KILL_PROCESS, _ALLOW = 0x80000000, 0x7FFF0000

_Code = list[tuple[int, int, int, int]]


def supported() -> bool:
    """Whether the numbers of this architecture are known."""
    return platform.machine() in NUMBERS


def install(own_pid: int | None, *, owns_files: bool) -> None:
    """Filter this process for good.

    Without a process namespace give its own id: then it may signal only itself and start threads but no processes.
    Where files of the host within its sight belong to its user (`owns_files`), it may not change a mode, owner or time.
    """
    linux.install_filter(_compiled(own_pid, owns_files))


@functools.lru_cache(maxsize=2)
def _compiled(own_pid: int | None, owns_files: bool) -> bytes:
    steps = program(platform.machine(), own_pid, owns_files=owns_files)
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def warm_up() -> None:
    """Compile the filter that is the same for every call."""
    _compiled(None, False)


def program(machine: str, own_pid: int | None, *, owns_files: bool) -> _Code:
    """The filter as cBPF instructions."""
    numbers = NUMBERS[machine]
    code: _Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, AUDIT_ARCH[machine]),
        _return(_KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT),  # on x86_64 the same calls under other numbers
        _fail(errno.ENOSYS),
    ]
    for name, body in _with_checked_arguments(own_pid):
        code += [(_JUMP_EQUAL, 0, len(body), numbers[name]), *body]
    allowed = _ALWAYS.split()
    allowed += _WITH_OWN_PROCESSES.split() if own_pid is None else []
    allowed += _ON_OWN_FILES.split() if not owns_files else []
    code += _ranges([numbers[name] for name in allowed if name in numbers], _return(_ALLOW))
    # The calls that programs know as forbidden are refused by permission; libraries probe for new ones by ENOSYS.
    code += _ranges(set(numbers.values()), _fail(errno.EPERM))
    return [*code, _fail(errno.ENOSYS)]


def _with_checked_arguments(own_pid: int | None) -> list[tuple[str, _Code]]:
    allow, refuse = _return(_ALLOW), _fail(errno.EPERM)
    if own_pid is None:
        clone = [_load(0), (_JUMP_ANY_BIT, 0, 1, _CLONE_NAMESPACES), refuse, allow]
    else:
        clone = [
            _load(0),
            (_JUMP_ANY_BIT, 1, 0, _CLONE_NAMESPACES),
            (_JUMP_ANY_BIT, 1, 0, _CLONE_THREAD),
            refuse,
            allow,
        ]
    checked = [
        ("clone", clone),
        ("fcntl", _unless(1, _FCNTLS_REFUSED, refuse)),
        (
            "clone3",
            [_fail(errno.ENOSYS)],
        ),  # its flags lie in memory, which a filter cannot read; libc uses clone
        ("socketpair", _only(0, (socket.AF_UNIX,), refuse)),
        ("ioctl", _only(1, _IOCTLS, _fail(errno.ENOTTY))),
        ("prlimit64", _only(0, (0,), refuse)),
        ("prctl", _unless(0, (_PR_SET_PDEATHSIG,), refuse)),  # or it would outlive its supervisor
    ]
    if own_pid is not None:
        checked += [("kill", _only(0, (own_pid,), refuse)), ("tgkill", _only(0, (own_pid,), refuse))]
    return checked


def _return(verdict: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, verdict)


def _fail(error: int) -> tuple[int, int, int, int]:
    return _return(0x00050000 | error)


def _load(argument: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * argument)


def _only(argument: int, values: Iterable[int], otherwise: tuple[int, int, int, int]) -> _Code:
    """Allow these values of an argument (its low 32 bits: the kernel reads an int there too)."""
    code = [_load(argument)]
    for value in values:
        code += [(_JUMP_EQUAL, 0, 1, value), _return(_ALLOW)]
    return [*code, otherwise]


def _unless(argument: int, values: Iterable[int], verdict: tuple[int, int, int, int]) -> _Code:
    code = [_load(argument)]
    for value in values:
        code += [(_JUMP_EQUAL, 0, 1, value), verdict]
    return [*code, _return(_ALLOW)]


def _ranges(numbers: Iterable[int], verdict: tuple[int, int, int, int]) -> _Code:
    """A verdict for every number in the set; falls through for the others."""
    code: _Code = []
    for first, last in _runs(sorted(set(numbers))):
        code += [(_JUMP_GREATER_EQUAL, 0, 2, first), (_JUMP_GREATER, 1, 0, last), verdict]
    return code


def _runs(ordered: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
