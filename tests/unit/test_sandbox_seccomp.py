import errno
import socket

import pytest

from flashreinforce_molt.sandbox.zygote import seccomp
from flashreinforce_molt.sandbox.zygote.syscall_numbers import AUDIT_ARCH, NUMBERS

ALLOW = "allow"
KILL = "kill"


def verdict(machine, name_or_number, *arguments, own_pid=None, owns_files=False, architecture=None):
    """Run the filter as the kernel would."""
    number = NUMBERS[machine].get(name_or_number, name_or_number)
    words = [argument & 0xFFFFFFFF for argument in arguments] + [0] * (6 - len(arguments))
    data = {
        0: number,
        4: architecture or AUDIT_ARCH[machine],
        **{16 + 8 * i: word for i, word in enumerate(words)},
    }
    program, at, value = seccomp.program(machine, own_pid, owns_files=owns_files), 0, 0
    while True:
        code, yes, no, k = program[at]
        at += 1
        if code == 0x20:
            value = data[k]
        elif code == 0x06:
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(k, errno.errorcode.get(k & 0xFFFF))
        else:
            holds = {0x15: value == k, 0x25: value > k, 0x35: value >= k, 0x45: bool(value & k)}[code]
            at += yes if holds else no


both = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


@both
def test_what_python_needs_is_allowed_and_what_opens_walls_is_not(machine):
    for name in ("read", "openat", "mmap", "futex", "execve", "getrandom", "exit_group", "kill", "fchmod"):
        assert verdict(machine, name) == ALLOW, name
    for name in (
        "socket",
        "connect",
        "ptrace",
        "mount",
        "unshare",
        "setns",
        "bpf",
        "keyctl",
        "io_uring_setup",
        "setuid",
    ):
        assert verdict(machine, name) == "EPERM", name
    assert verdict(machine, 9999) == "ENOSYS"


@both
def test_no_clone_makes_a_namespace(machine):
    assert verdict(machine, "clone", 0x01200011) == ALLOW  # a fork
    assert verdict(machine, "clone", 0x003D0F00) == ALLOW  # a thread
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, "clone", flag | 17) == "EPERM"
    assert verdict(machine, "clone3") == "ENOSYS"  # so that libc uses clone, whose flags can be seen


@both
def test_without_a_process_namespace_only_threads_and_signals_to_itself(machine):
    def mine(name, *arguments):
        return verdict(machine, name, *arguments, own_pid=77)

    assert mine("clone", 0x003D0F00) == ALLOW
    assert mine("clone", 0x01200011) == "EPERM"
    assert mine("kill", 77, 9) == mine("tgkill", 77, 77, 9) == ALLOW
    for target in (1, 78, 0, -1, -77):
        assert mine("kill", target, 9) == mine("tgkill", target, 78, 9) == "EPERM"
    for name in ("tkill", "rt_sigqueueinfo"):
        assert mine(name) == "EPERM", name
    if machine == "x86_64":
        assert mine("fork") == mine("vfork") == "EPERM"


@both
def test_who_owns_files_in_sight_changes_neither_mode_nor_owner_nor_times(machine):
    for name in (
        "fchmod",
        "fchmodat",
        "fchmodat2",
        "fchown",
        "fchownat",
        "utimensat",
        "setxattr",
        "truncate",
    ):
        assert verdict(machine, name) == ALLOW, name
        assert verdict(machine, name, owns_files=True) == "EPERM", name


@both
def test_arguments_are_checked(machine):
    assert verdict(machine, "socketpair", socket.AF_UNIX) == ALLOW
    assert verdict(machine, "socketpair", socket.AF_INET) == "EPERM"
    assert verdict(machine, "ioctl", 0, 0x5401) == ALLOW
    assert verdict(machine, "ioctl", 0, 0x5412) == "ENOTTY"  # TIOCSTI types into a terminal
    assert verdict(machine, "prlimit64", 0) == ALLOW
    assert verdict(machine, "prlimit64", 4711) == "EPERM"
    assert verdict(machine, "prctl", 15) == ALLOW
    assert verdict(machine, "prctl", 1) == "EPERM"  # a snippet that outlives its supervisor
    assert verdict(machine, "fcntl", 3, 4) == ALLOW
    assert verdict(machine, "fcntl", 3, 8) == verdict(machine, "fcntl", 3, 1024) == "EPERM"


@both
def test_other_doors_to_the_kernel_are_shut(machine):
    assert verdict(machine, "read", architecture=0x40000003) == KILL  # 32-bit x86
    assert verdict(machine, 0x40000000 + 41) == "ENOSYS"  # x32
    assert verdict(machine, 0xFFFFFFFF) == "ENOSYS"


@both
def test_every_number_of_the_list_has_one_verdict_and_jumps_stay_inside(machine):
    program = seccomp.program(machine, None, owns_files=False)
    assert len(program) < 4096
    for at, (code, yes, no, _) in enumerate(program):
        if code not in (0x06, 0x20):
            assert at + 1 + max(yes, no) < len(program)
            assert max(yes, no) < 256
