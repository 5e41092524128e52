"""How long a snippet takes in the sandbox, beside bubblewrap and a plain subprocess, measured by turns in one run.

    python benchmarks/sandbox_latency.py [--repeat 30] [--calls 64]

A contender runs each snippet once per round, so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sandbox_attacks import strictest

from flashreinforce_molt.sandbox import Isolation, Limits, PythonSandbox, Session

SNIPPETS = {
    "print(1)": "print(1)",
    "numpy": "import numpy as n\nprint(int(n.arange(10).sum()))",
    "sympy": "import sympy as s\nx = s.Symbol('x')\nprint(s.solve(x**2 - 5*x + 6, x))",
}
EXPECTED = {"print(1)": "1\n", "numpy": "45\n", "sympy": "[2, 3]\n"}
OURS = "sandbox"
BWRAP = [
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/",
    "/",
    "--dev",
    "/dev",
    "--proc",
    "/proc",
]

Contender = Callable[[str], Awaitable[str]]


def program(*command: str) -> Contender:
    """A fresh interpreter per snippet."""

    async def run(code: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *command,
            sys.executable,
            "-I",
            "-c",
            code,
            stdout=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
        )
        return (await process.communicate())[0].decode()

    return run


def sandboxed(box: PythonSandbox) -> Contender:
    async def run(code: str) -> str:
        return (await box.run(code, timeout=60)).stdout

    return run


def in_session(session: Session) -> Contender:
    async def run(code: str) -> str:
        return (await session.run(code, 60)).stdout

    return run


async def contenders(stack: AsyncExitStack, calls_at_once: int) -> dict[str, Contender]:
    limits = Limits(timeout=60)
    found: dict[str, Contender] = {}
    for backend, name in (
        ("namespaces", OURS),
        ("landlock", "sandbox, landlock"),
        ("bubblewrap", "sandbox, bubblewrap"),
    ):
        isolation = await asyncio.to_thread(strictest_or_none, backend)
        if isolation is not None:
            box = await stack.enter_async_context(PythonSandbox(isolation, limits, concurrency=calls_at_once))
            found[name] = sandboxed(box)
            if name == OURS:
                found["sandbox, open session"] = in_session(await stack.enter_async_context(box.session()))
    found["python -c"] = program()
    if shutil.which("bwrap"):
        found["bwrap python -c"] = program("bwrap", *BWRAP)
    return found


def strictest_or_none(backend: str) -> Isolation | None:
    try:
        return strictest(backend)
    except RuntimeError as error:
        print(f"left out: {error}")
        return None


async def latencies(found: dict[str, Contender], repeat: int) -> dict[str, dict[str, float]]:
    """Median milliseconds by contender and snippet."""
    times: dict[str, dict[str, list[float]]] = {name: {snippet: [] for snippet in SNIPPETS} for name in found}
    for round_number in range(repeat + 1):
        for snippet, code in SNIPPETS.items():
            for name, contender in found.items():
                if snippet != "print(1)" and round_number > max(3, repeat // 5):
                    continue  # the slow ones cost seconds each
                start = time.perf_counter()
                said = await contender(code)
                seconds = time.perf_counter() - start
                assert said == EXPECTED[snippet], (name, snippet, said)
                if round_number:
                    times[name][snippet].append(seconds)
    return {name: {s: statistics.median(t) * 1e3 for s, t in rows.items()} for name, rows in times.items()}


async def throughput(contender: Contender, calls: int, at_once: int) -> float:
    """Seconds for many calls, a few at a time."""
    slots = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with slots:
            assert await contender(f"print({number})") == f"{number}\n"

    start = time.perf_counter()
    await asyncio.gather(*[one(i) for i in range(calls)])
    return time.perf_counter() - start


def versions() -> str:
    named = [
        f"Python {platform.python_version()}",
        f"Linux {platform.release()}",
        f"{os.cpu_count()} processors",
    ]
    for package in ("numpy", "sympy"):
        try:
            named.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            named.append(f"no {package}")
    if shutil.which("bwrap"):
        named.append(subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip())
    return ", ".join(named)


async def measure(repeat: int, calls: int) -> None:
    at_once = len(os.sched_getaffinity(0))
    print(versions())
    print(f"load {os.getloadavg()[0]:.1f} before; command: {' '.join(['python', *sys.argv])}\n")
    for package in ("numpy", "sympy"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            SNIPPETS.pop(package)
    async with AsyncExitStack() as stack:
        found = await contenders(stack, at_once)
        medians = await latencies(found, repeat)
        ours = medians[OURS]
        print(f"{'median ms (times ours)':24}" + "".join(f"{snippet:>20}" for snippet in SNIPPETS))
        for name, row in medians.items():
            cells = [f"{row[s]:.1f} ({row[s] / ours[s]:.1f}x)" for s in SNIPPETS]
            print(f"{name:24}" + "".join(f"{cell:>20}" for cell in cells))
        print(f"\n{calls} calls of print, {at_once} at a time")
        for name in [n for n in (OURS, "python -c", "bwrap python -c") if n in found]:
            seconds = await throughput(found[name], calls, at_once)
            print(f"{name:24}{seconds:10.2f} s {calls / seconds:10.1f} calls/s")
    print(f"load {os.getloadavg()[0]:.1f} after")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--calls", type=int, default=64)
    options = parser.parse_args()
    asyncio.run(measure(options.repeat, options.calls))


if __name__ == "__main__":
    main()
