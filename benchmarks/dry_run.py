"""How long a dry run takes, as a ratio to starting Python at all.

    python benchmarks/dry_run.py [--runs 15] [--recipe r1]

Both are started in turn as new processes, so that a busy machine slows them alike; the median of each is compared. CPU
seconds say what the dry run costs, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def timed(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one new process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the medians and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--recipe", default="r1")
    options = parser.parse_args()
    script = [sys.executable, "scripts/train_molt.py", "--recipe", options.recipe, "--dry-run"]
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "dry run, text": script,
        "dry run, json": [*script, "--format", "json"],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for command in commands.values():
        timed(command)  # bytecode and file cache
    for _ in range(options.runs):
        for name, command in commands.items():
            times[name].append(timed(command))
    base = [statistics.median(column) for column in zip(*times["python -c pass"], strict=True)]
    print(
        f"{options.runs} runs each, medians, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':16}{'wall s':>8}{'ratio':>8}{'CPU s':>8}{'ratio':>8}{'worst s':>9}")
    for name, measured in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
        worst = max(wall for wall, _ in measured)
        print(f"{name:16}{wall:8.3f}{wall / base[0]:8.1f}{cpu:8.3f}{cpu / base[1]:8.1f}{worst:9.3f}")


if __name__ == "__main__":
    main()
