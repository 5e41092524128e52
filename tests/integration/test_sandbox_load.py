"""Many calls at once, big bombs, and the libraries that models want."""

import asyncio
import dataclasses
import os
import threading
import time
from pathlib import Path

import pytest

from flashreinforce_molt.sandbox import Isolation, Limits, PythonSandbox

pytestmark = pytest.mark.slow


def anonymous_memory(server_pid):
    """Megabytes that all forks of the server hold beyond what they share with it."""
    line = Path(f"/proc/{server_pid}/cmdline").read_bytes()
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == line:
                rollup = (entry / "smaps_rollup").read_text()
                total += int(rollup.split("Pss_Anon:")[1].split()[0])
        except (OSError, IndexError):
            continue
    return total / 1024


def test_sixty_four_calls_at_once_stay_apart_and_bounded():
    async def play():
        async with PythonSandbox(limits=Limits(timeout=60), concurrency=2) as box:
            peak, done = [0.0], threading.Event()

            def measure():
                while not done.is_set():
                    peak[0] = max(peak[0], anonymous_memory(box.server_pid))
                    time.sleep(0.05)

            watcher = threading.Thread(target=measure)
            watcher.start()
            code = "import os, numpy\nopen('mine', 'w').write('{0}')\nx = numpy.full(8 << 20 >> 3, {0}.0)\nprint({0})\nint(x.mean()), open('mine').read(), os.listdir()"
            results = await asyncio.gather(*[box.run(code.format(i)) for i in range(64)])
            done.set()
            watcher.join()
            return results, peak[0]

    results, peak = asyncio.run(play())
    for i, result in enumerate(results):
        assert result.ok, result
        assert result.stdout == f"{i}\n"
        number, text, files = eval(result.value)
        assert (number, text, "mine" in files) == (i, str(i), True)
    assert peak < 1024, f"{peak:.0f} MB for 64 calls of 8 MB each, two at a time"


def test_bombs_side_by_side_end_and_a_good_call_after_them_is_right():
    bombs = (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "while True: print('x' * 1000)",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "for i in range(10**6): open(str(i), 'w').write('x' * 9999)",
        "while True: pass",
    )

    async def play():
        async with PythonSandbox(
            limits=Limits(timeout=2.0, memory_bytes=256 << 20), preload=(), concurrency=4
        ) as box:
            ended = await asyncio.gather(*[box.run(code) for code in bombs * 3])
            return ended, await box.run("2 ** 10", timeout=30)

    ended, good = asyncio.run(play())
    assert not [result for result in ended if result.status in ("ok", "sandbox_error", "cancelled")]
    assert good.value == "1024"


def test_sympy_and_numpy_are_warm_and_right():
    async def play():
        async with PythonSandbox() as box:
            if not {"numpy", "sympy"} <= set(box.preloaded):
                pytest.skip("numpy and sympy are not installed")
            solved = await box.run(
                "import sympy as s\nx = s.Symbol('x')\ns.solve(x**2 - 5*x + 6, x), s.integrate(s.sin(x)**2, x)",
                60,
            )
            drawn = await box.run(
                "import numpy as n\na = n.random.rand(200, 200)\nbool(n.allclose(a @ n.linalg.inv(a), n.eye(200), atol=1e-6))",
                60,
            )
            one, other = [await box.run("import numpy; float(numpy.random.rand())") for _ in range(2)]
            return solved, drawn, one, other

    solved, drawn, one, other = asyncio.run(play())
    assert solved.value == "([2, 3], x/2 - sin(x)*cos(x)/2)"
    assert drawn.value == "True"
    assert one.value != other.value


def test_landlock_can_be_added_to_namespaces():
    isolation = Isolation(required=("namespaces", "uid", "seccomp", "limits", "landlock"))

    async def play():
        async with PythonSandbox(isolation, preload=()) as box:
            return box.layers, await box.run("import os, wave\nopen('f', 'w').write('x')\nos.listdir('/')")

    layers, result = asyncio.run(play())
    assert set(layers) == set(isolation.layers)
    assert "PermissionError" in result.stderr


def test_many_sessions_are_cheap_and_end_with_the_sandbox():
    async def play():
        limits = dataclasses.replace(Limits(), timeout=30)
        async with PythonSandbox(limits=limits, preload=(), spares=0) as box:
            sessions = [box.session() for _ in range(40)]
            for session in sessions:
                await session.__aenter__()
            await asyncio.gather(*[session.run(f"x = {i}") for i, session in enumerate(sessions)])
            values = await asyncio.gather(*[session.run("x") for session in sessions])
            line = Path(f"/proc/{box.server_pid}/cmdline").read_bytes()
            each = anonymous_memory(box.server_pid) / 40
        return line, [int(value.value) for value in values], each

    line, values, each = asyncio.run(play())
    assert values == list(range(40))
    assert each < 20, f"{each:.1f} MB for an idle session"
    deadline = time.monotonic() + 5
    while any(p.name.isdigit() and _line(p) == line for p in Path("/proc").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _line(entry):
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_hundred_calls_leave_no_process_and_no_descriptor():
    async def play():
        async with PythonSandbox(preload=(), spares=0) as box:
            await box.run("1")
            before = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{box.server_pid}/fd"))
            for _ in range(10):
                assert all(
                    result.ok for result in await asyncio.gather(*[box.run("print(1)") for _ in range(10)])
                )
            after = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{box.server_pid}/fd"))
            return (
                before,
                after,
                [
                    p
                    for p in Path("/proc").iterdir()
                    if p.name.isdigit() and _line(p) == _line(Path(f"/proc/{box.server_pid}"))
                ],
            )

    before, after, living = asyncio.run(play())
    assert before == after
    assert len(living) == 1
