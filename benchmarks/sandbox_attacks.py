"""Attacks on the sandbox: what each tries, and what came of it. The tests run the same catalogue.

    python benchmarks/sandbox_attacks.py [--backend namespaces|landlock|bubblewrap]

A snippet prints ESCAPED when it got what it must not get. An attack is held when it did not, when the status is one that
the catalogue expects, when the bait outside is untouched, and when no process of the call is left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from flashreinforce_molt.sandbox import (
    Isolation,
    Limits,
    PythonSandbox,
    Result,
    SandboxUnavailable,
)

LIMITS = Limits(timeout=1.5, memory_bytes=512 << 20, disk_bytes=16 << 20, output_kill_bytes=2 << 20)
SECRET = "hunter2-of-the-parent"
MARK = "98765.4321"
"""Argument of programs that attacks start, to find them again."""

_SYSCALL = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@dataclass(frozen=True)
class Attack:
    name: str
    code: str
    statuses: tuple[str, ...] = ("ok", "error")
    """What may come of it."""
    needs_files: bool = False
    """Pointless where no file can be written."""
    not_held_by: str = ""
    """Backend that does not stop it; docs/sandbox.md says so."""

    @property
    def heavy(self) -> bool:
        """Uses up time, memory or processes for a while."""
        return bool({"timeout", "memory", "output", "file", "cpu"}.intersection(self.statuses))


def _each(body: str, over: str) -> str:
    """Try `body` for every x; print ESCAPED where it raises no OSError."""
    return f"""
import os
for x in {over}:
    try:
        {body}
    except OSError:
        continue
    print("ESCAPED", x)
"""


ATTACKS = (
    # Using up time, memory, output, disk and processes
    Attack("endless loop", "while True: pass", ("timeout",)),
    Attack(
        "loop that ignores every signal",
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        ("timeout",),
    ),
    Attack("stops itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", ("timeout",)),
    Attack("one step that never returns", "9 ** 9 ** 9 ** 9", ("timeout", "memory")),
    Attack(
        "pattern with exponential backtracking", "import re; re.match('(a+)+$', 'a' * 40 + 'b')", ("timeout",)
    ),
    Attack("10 GB in one piece", "b = bytearray(10 << 30); print('ESCAPED')", ("memory",)),
    Attack(
        "memory in small pieces", "x = []\nwhile True: x.append(bytearray(1 << 20))", ("memory", "timeout")
    ),
    Attack(
        "memory over many processes",
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        b = bytearray(b'x' * (200 << 20)); time.sleep(30)\n"
        "time.sleep(1.2); print('ESCAPED')",
        ("memory", "error", "timeout"),
    ),
    Attack(
        "shared memory over many maps",
        "import mmap\nx = []\nwhile True:\n    m = mmap.mmap(-1, 16 << 20); m.write(b'x' * len(m)); x.append(m)",
        ("memory", "timeout"),
    ),
    Attack("endless output", "while True: print('x' * 1000)", ("output",)),
    Attack("endless output on stderr", "import os\nwhile True: os.write(2, b'x' * 65536)", ("output",)),
    Attack("200 MB as a value", "'x' * (200 << 20)", ("ok", "memory", "timeout")),
    Attack(
        "one huge file",
        "f = open('f', 'wb')\nwhile True: f.write(b'x' * (1 << 20))",
        ("file",),
        needs_files=True,
    ),
    Attack(
        "many files",
        "for i in range(1000): open(str(i), 'wb').write(b'x' * (1 << 20))\nprint('ESCAPED')",
        ("file",),
        needs_files=True,
    ),
    Attack(
        "files without content",
        "for i in range(100_000): open(str(i), 'w').close()\nprint('ESCAPED')",
        ("file",),
        needs_files=True,
        not_held_by="bubblewrap",  # it has no option for the number of files
    ),
    Attack(
        "disk by deleted files that stay open",
        "import os\nx = []\nfor i in range(1000):\n    f = open('f', 'wb', 0); f.write(b'x' * (1 << 20)); os.unlink('f'); x.append(f)\n"
        "print('ESCAPED')",
        ("file", "error", "timeout"),
        needs_files=True,
    ),
    Attack(
        "fork bomb",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        ("timeout", "cpu", "crashed", "error", "memory"),
    ),
    Attack(
        "counts how far a fork bomb gets",
        "import os, time\nn = 0\nfor _ in range(300):\n    try:\n        if os.fork() == 0: time.sleep(30)\n        n += 1\n    except OSError: pass\n"
        "print('ESCAPED' if n > 40 else n)",
        ("ok", "error", "crashed", "memory", "timeout"),
    ),
    Attack(
        "threads without end",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(30,), daemon=True).start()",
        ("error", "memory", "timeout", "crashed"),
    ),
    Attack(
        "daemon that outlives its call",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)\n    os._exit(0)",
        ("ok", "error"),
    ),
    Attack(
        "program that outlives its call",
        f"import subprocess; subprocess.Popen(['/bin/sleep', '{MARK}'], start_new_session=True, stdout=-3, stderr=-3)",
        ("ok", "error"),
    ),
    Attack(
        "raises its limits",
        "import resource as r\n"
        + _each(
            "r.setrlimit(x, (r.RLIM_INFINITY,) * 2)",
            "(r.RLIMIT_AS, r.RLIMIT_NPROC, r.RLIMIT_FSIZE, r.RLIMIT_NOFILE)",
        ).replace("OSError", "(OSError, ValueError)"),
    ),
    # Dying in other ways
    Attack("segmentation fault", "import ctypes; ctypes.string_at(0)", ("crashed",)),
    Attack(
        "recursion without a limit",
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
        ("crashed", "error", "memory", "timeout"),
    ),
    Attack(
        "code nested 100,000 deep", "print(eval('-' * 100_000 + '1'))", ("ok", "error", "memory", "crashed")
    ),
    Attack("leaves with success before its end", "import os; os._exit(0)", ("crashed",)),
    Attack(
        "kills everything it can reach",
        "import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nos.kill(os.getpid(), 9)",
        ("crashed",),
    ),
    Attack(
        "error whose text raises",
        "class E(Exception):\n    def __str__(self): raise self\nraise E",
        ("error",),
    ),
    Attack(
        "value whose repr loops",
        "class V:\n    def __repr__(self):\n        while True: pass\nV()",
        ("timeout",),
    ),
    Attack("NUL byte in the code", "print('a')\0print('ESCAPED')", ("error",)),
    Attack("lone surrogate in the code", "print('\ud800')", ("ok", "error")),
    Attack("bytes that are no UTF-8", "import os; os.write(1, b'\\xff\\xfe\\x00ok')", ("ok",)),
    # Lying to the sandbox
    Attack(
        "answers for the sandbox with garbage",
        "import os\nfor _ in range(100): os.write(3, b'\\xff' * 64)\nwhile True: pass",
        ("crashed",),
    ),
    Attack(
        "answers with JSON nested too deep",
        "import os, struct\nt = b'[' * 30000\nos.write(3, struct.pack('>II', len(t), 0) + t)\nwhile True: pass",
        ("crashed",),
    ),
    Attack(
        "claims a status that is not its own",
        "import sys, json, os, struct\nf = sys._getframe()\nwhile 'header' not in f.f_locals: f = f.f_back\n"
        "t = json.dumps({**f.f_locals['header'], 'status': 'sandbox_error'}).encode()\nos.write(3, struct.pack('>II', len(t), 0) + t)\nwhile True: pass",
        ("crashed",),
    ),
    Attack("cuts its line to the sandbox", "import os; os.close(3)\nwhile True: pass", ("crashed",)),
    # Reading what is not its own
    Attack(
        "reads the users of the host",
        _each("open(x).read()", "('/etc/passwd', '/etc/shadow', '/etc/hostname')"),
    ),
    Attack("reads a file outside", _each("open(x).read()", "('@CANARY@',)")),
    Attack(
        "lists directories outside",
        _each("os.listdir(x)", "('/home', '/srv', '/var', '/sys', '/run', '@CANARY_DIR@')"),
    ),
    Attack(
        "reads environments and command lines",
        _each(
            "open(x, 'rb').read()",
            "[f'/proc/{p}/{n}' for p in ('self', 1, '@PARENT@', '@SERVER@') for n in ('environ', 'cmdline', 'maps')]",
        )
        + "if '@SECRET@' in str(os.environ): print('ESCAPED')",
    ),
    Attack(
        "searches its memory for the parent's secret",
        _SYSCALL + "e = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')\ni = 0\n"
        "while e[i]:\n    if b'@SECRET@'[:7] in e[i]: print('ESCAPED')\n    i += 1",
    ),
    Attack("sees other processes", _each("os.listdir(x)", "('/proc', '/proc/1', '/proc/self/fd')")),
    Attack(
        "walks out through inherited files",
        "import os, stat\nfor fd in range(3, 1024):\n    try: mode = os.fstat(fd).st_mode\n    except OSError: continue\n"
        "    if not stat.S_ISSOCK(mode) or fd > 3: print('ESCAPED', fd, oct(mode))",
    ),
    Attack("opens parents of the root", _each("open('/../../../../@CANARY@')", "(0,)")),
    # Writing what is not its own
    Attack(
        "writes outside its directory",
        _each(
            "open(os.path.join(x, 'planted'), 'w')",
            "('/', '/usr/lib', '/etc', '/dev', '/root', '/var/tmp', '@CANARY_DIR@', os.path.dirname(os.__file__))",
        ),
    ),
    Attack("changes a file outside", _each("open(x, 'r+')", "('@CANARY@', os.__file__)")),
    Attack(
        "changes the mode or times of a file outside",
        _each("(os.chmod(x, 0o777), os.utime(x, (0, 0)))", "('@CANARY@', os.__file__)"),
    ),
    Attack(
        "changes the mode or times of a device",
        _each("(os.chmod(x, 0o666), os.utime(x))", "('/dev/null', '/dev/zero', '/dev/urandom')"),
    ),
    Attack(
        "plants links to the outside in its directory",
        "import os\nos.symlink('@CANARY@', 'a'); os.symlink('@CANARY_DIR@', 'd'); os.mkdir('x'); os.chmod('x', 0)\n"
        "try: os.link('@CANARY@', 'h'); print('ESCAPED')\nexcept OSError: pass\n"
        "try: open('a', 'w').write('gone'); print('ESCAPED')\nexcept OSError: pass",
        needs_files=True,
    ),
    Attack(
        "makes a device",
        _each("os.mknod('m', 0o60666, os.makedev(x, 0))", "(1, 7, 8, 254)"),
        needs_files=True,
    ),
    # Reaching others
    Attack(
        "connects to the host",
        "import socket\ntry: socket.create_connection(('127.0.0.1', @PORT@), 1); print('ESCAPED')\nexcept OSError: pass",
    ),
    Attack(
        "connects to an abstract socket",
        "import socket\ntry:\n    s = socket.socket(socket.AF_UNIX); s.connect('\\0@ABSTRACT@'); print('ESCAPED')\nexcept OSError: pass",
    ),
    Attack(
        "opens sockets of any family",
        "import socket\n" + _each("socket.socket(x // 8, 1 + x % 8)", "range(8, 46 * 8)"),
    ),
    Attack(
        "turns a pair into a listener",
        "import socket\na, b = socket.socketpair()\ntry: a.bind('\\0mine'); print('ESCAPED')\nexcept OSError: pass\ntry: socket.socketpair(socket.AF_INET); print('ESCAPED')\nexcept OSError: pass",
    ),
    Attack(
        "signals the parent, the server and a bystander",
        _each("os.kill(x, 9)", "[p for p in (os.getppid(), @PARENT@, @SERVER@, @BYSTANDER@) if p > 1]"),
    ),
    Attack(
        "signals through the owner of a pipe",
        "import fcntl, signal\nr, w = __import__('os').pipe()\n"
        + _each("fcntl.fcntl(r, x, @BYSTANDER@)", "(8, 10, 15)"),
    ),
    Attack(
        "traces the parent",
        _SYSCALL
        + "for p in (os.getppid(), @PARENT@, @BYSTANDER@):\n    if libc.ptrace(16, p, 0, 0) == 0 or libc.ptrace(0x4206, p, 0, 0) == 0: print('ESCAPED')",
    ),
    Attack(
        "reads the memory of the parent",
        _SYSCALL
        + "b = ctypes.create_string_buffer(8)\nclass V(ctypes.Structure): _fields_ = [('p', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "v = V(ctypes.addressof(b), 8)\nfor p in (@PARENT@, @BYSTANDER@, 1):\n    if libc.process_vm_readv(p, ctypes.byref(v), 1, ctypes.byref(v), 1, 0) > 0: print('ESCAPED')",
    ),
    Attack(
        "slows the trainer down",
        _each("(os.sched_setaffinity(x, {0}), os.setpriority(0, x, 19))", "(@PARENT@, @BYSTANDER@)"),
    ),
    Attack(
        "caps the memory of the parent",
        "import resource as r\n" + _each("r.prlimit(x, r.RLIMIT_AS, (1, 1))", "(@PARENT@, @BYSTANDER@)"),
    ),
    Attack(
        "holds up who opens a library",
        "import fcntl\n" + _each("fcntl.fcntl(open(os.__file__), 1024, x)", "(0, 1)"),
    ),
    Attack(
        "shares memory with other calls",
        _SYSCALL
        + "if libc.shmget(0x1234, 4096, 0o1777) >= 0 or libc.memfd_create(b'm', 0) >= 0: print('ESCAPED')",
    ),
    # Leaving the walls
    Attack(
        "makes namespaces",
        _SYSCALL
        + "for f in (0x10000000, 0x10020000, 0x20000, 0x40000000, 0x80):\n    if libc.unshare(f) == 0: print('ESCAPED', f)",
    ),
    Attack(
        "makes namespaces by clone",
        _SYSCALL
        + "for f in (0x10000000, 0x10020000, 0x50000000):\n    p = libc.syscall(56 if os.uname().machine == 'x86_64' else 220, ctypes.c_ulong(f | 17), 0, 0, 0, 0)\n"
        "    if p == 0: os._exit(0)\n    if p > 0: print('ESCAPED', f)\n"
        "a = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17)\np = libc.syscall(435, a, 64)\nif p == 0: os._exit(0)\nif p > 0: print('ESCAPED clone3')",
    ),
    Attack(
        "mounts",
        _SYSCALL
        + "if libc.mount(b'none', b'/', None, 4096 | 32, b'') == 0 or libc.mount(b'proc', b'/tmp', b'proc', 0, b'') == 0 or libc.umount2(b'/tmp', 2) == 0: print('ESCAPED')\nfor n in (428, 429, 430, 442):\n    if libc.syscall(n, 0, 0, 0, 0, 0) >= 0: print('ESCAPED', n)",
    ),
    Attack("changes its root", _each("os.chroot(x)", "('/', '/tmp')")),
    Attack(
        "becomes root",
        _each("(os.setuid(x), os.setgid(x))", "(0,)")
        + "if os.getuid() == 0 and @UNPRIVILEGED@: print('ESCAPED')",
    ),
    Attack(
        "runs set-id programs",
        "import subprocess, os\nu = os.getuid()\nfor p in ('su', 'passwd', 'mount', 'newgrp', 'chsh'):\n    p = '/usr/bin/' + p\n"
        "    if os.path.exists(p):\n        r = subprocess.run([p, '-h'], capture_output=True)\nr = subprocess.run(['/usr/bin/id', '-u'], capture_output=True, text=True)\n"
        "if r.stdout and int(r.stdout) != u: print('ESCAPED', r)",
    ),
    Attack(
        "calls the kernel's tools",
        _SYSCALL
        + "for n in (321, 323, 250, 248, 298, 425, 434, 438, 447, 246, 175, 304, 448):\n    ctypes.set_errno(0)\n    r = libc.syscall(n, 0, 0, 0, 0, 0, 0)\n    if r >= 0 or ctypes.get_errno() not in (1, 38): print('ESCAPED', n, r, ctypes.get_errno())"
        if platform.machine() == "x86_64"
        else "pass",
    ),
    Attack(
        "calls by the numbers of x32",
        _SYSCALL + "if libc.syscall(0x40000000 + 39) >= 0: print('ESCAPED')"
        if platform.machine() == "x86_64"
        else "pass",
    ),
    Attack(
        "calls by the 32-bit gate",
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(bytes.fromhex('b814000000cd80c3'))\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nprint('ESCAPED', f())"
        if platform.machine() == "x86_64"
        else "raise OSError",
        ("crashed", "error"),
    ),
)


@contextmanager
def bait() -> Iterator[dict[str, str]]:
    """What attacks go for: a file, a secret in the environment, listeners, a bystander. Fails when touched."""
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as directory,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as abstract,
    ):
        os.chmod(directory, 0o755)
        canary = Path(directory, "canary")
        canary.write_text("alive")
        canary.chmod(0o644)
        before = canary.stat()
        abstract.bind(f"\0canary-{os.getpid()}")
        abstract.listen()
        bystander = subprocess.Popen(["/bin/sleep", "1000"])
        os.environ["SANDBOX_TEST_SECRET"] = SECRET
        try:
            yield {
                "CANARY": str(canary),
                "CANARY_DIR": directory,
                "PARENT": str(os.getpid()),
                "BYSTANDER": str(bystander.pid),
                "PORT": str(listener.getsockname()[1]),
                "ABSTRACT": f"canary-{os.getpid()}",
                "SECRET": SECRET,
            }
            after = canary.stat()
            assert canary.read_text() == "alive", "the bait was changed"
            assert os.listdir(directory) == ["canary"], "something was planted"
            assert (before.st_mode, before.st_mtime, before.st_nlink) == (
                after.st_mode,
                after.st_mtime,
                after.st_nlink,
            )
            assert bystander.poll() is None, "the bystander was killed"
            assert len(os.sched_getaffinity(bystander.pid)) == len(os.sched_getaffinity(0)), "it was pinned"
        finally:
            del os.environ["SANDBOX_TEST_SECRET"]
            bystander.kill()
            bystander.wait()


def attacks_on(backend: str) -> list[Attack]:
    """Those that mean something there and that it claims to hold."""
    possible = [attack for attack in ATTACKS if backend != "landlock" or not attack.needs_files]
    return [attack for attack in possible if attack.not_held_by != backend]


def filled(attack: Attack, places: dict[str, str], box: PythonSandbox) -> str:
    """The attack's code for this host."""
    return filled_for(attack, places, server_pid=box.server_pid or 0, unprivileged="uid" in box.layers)


def filled_for(attack: Attack, places: dict[str, str], *, server_pid: int, unprivileged: bool) -> str:
    code = attack.code
    for name, value in {**places, "SERVER": str(server_pid), "UNPRIVILEGED": str(unprivileged)}.items():
        code = code.replace(f"@{name}@", value)
    return code


def left_over(box: PythonSandbox) -> list[int]:
    """Processes of past calls that still live: forks of the server, and programs that attacks started."""
    server = Path(f"/proc/{box.server_pid}/cmdline").read_bytes()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if (line == server and int(entry.name) != box.server_pid) or MARK.encode() in line:
            found.append(int(entry.name))
    return found


def verdict(attack: Attack, result: Result, left: list[int]) -> str:
    """Empty when the attack was held."""
    if "ESCAPED" in result.stdout or "ESCAPED" in str(result.value):
        return f"escaped: {result.stdout[:200]!r}"
    if result.status not in attack.statuses:
        return (
            f"status {result.status}, not {'/'.join(attack.statuses)}: {result.detail} {result.stderr[-300:]}"
        )
    return f"processes left: {left}" if left else ""


def strictest(backend: str) -> Isolation:
    """The backend with all layers that a root user with an interpreter below /root can have."""

    async def attempt(isolation: Isolation) -> None:
        async with PythonSandbox(isolation, preload=()):
            pass

    isolation = Isolation(backend)
    try:
        asyncio.run(attempt(isolation))
    except SandboxUnavailable as missing:
        if missing.layer != "uid":
            raise
        isolation = Isolation(backend, required=tuple(layer for layer in isolation.layers if layer != "uid"))
    return isolation


async def _table(backend: str, isolation: Isolation) -> int:
    lost = 0
    async with PythonSandbox(isolation, LIMITS, preload=(), spares=0) as box:
        print(
            f"backend {backend}, layers {', '.join(box.layers)}; Python {platform.python_version()}, Linux {platform.release()}"
        )
        with bait() as places:
            for attack in attacks_on(backend):
                start = time.perf_counter()
                result = await box.run(filled(attack, places, box))
                seconds = time.perf_counter() - start
                problem = verdict(attack, result, left_over(box))
                lost += bool(problem)
                print(
                    f"{attack.name:45}  {result.status:8}  {seconds:6.2f} s  {problem or 'held'}", flush=True
                )
    print(f"{len(attacks_on(backend)) - lost} of {len(attacks_on(backend))} held")
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="namespaces")
    backend = parser.parse_args().backend
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    return 1 if asyncio.run(_table(backend, strictest(backend))) else 0


if __name__ == "__main__":
    sys.exit(main())
