"""Train for a while and watch memory: does anything grow that should stay flat?

    python scripts/soak.py --minutes 20 --output runs/soak

The quick start runs with a constant learning rate until the time is over; every ten seconds the resident memory of the
learner and of its rollout workers is read from /proc, with the trajectories that wait. Prints a table, and the growth
from the second quarter of the time to the last one, in percent.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from kill_test import ROOT, worker_pids

EVERY_S = 10.0
SETTINGS = (
    "train.updates=1000000",
    "optim.schedule=constant",
    "evaluation.size=0",
    "checkpoint.every=200",
    "telemetry.live=never",
)


def resident_mb(pid: int) -> float:
    """Resident memory of a process; its shared weights count in every process."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return int(fields["VmRSS"].split()[0]) / 1024


def watch(
    run: subprocess.Popen[bytes], output: Path, seconds: float
) -> list[tuple[float, float, float, int]]:
    """Seconds, MB of the learner, MB of all workers, updates done; from the first update on."""
    metrics, rows = output / "metrics.jsonl", []
    while not (metrics.exists() and metrics.stat().st_size):
        if run.poll() is not None:
            raise RuntimeError(f"the run ended with {run.returncode} before its first update")
        time.sleep(0.5)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        if run.poll() is not None:
            raise RuntimeError(f"the run ended with {run.returncode} after {passed:.0f} s")
        workers = sum(resident_mb(pid) for pid in worker_pids(run.pid))
        update = json.loads(metrics.read_text().splitlines()[-2 if len(rows) else 0])["update"]
        rows.append((passed, resident_mb(run.pid), workers, update))
        time.sleep(EVERY_S)
    return rows


def growth(rows: list[tuple[float, float, float, int]], column: int) -> float:
    """Median of the last quarter against that of the second, in percent."""
    quarter = len(rows) // 4
    early = statistics.median(row[column] for row in rows[quarter : 2 * quarter])
    late = statistics.median(row[column] for row in rows[3 * quarter :])
    return 100 * (late / early - 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--output", type=Path, required=True, help="run directory")
    options = parser.parse_args()
    command = [sys.executable, str(ROOT / "scripts/train_molt.py"), "--recipe", "quickstart"]
    command += ["--output", str(options.output)]
    for setting in SETTINGS:
        command += ["--set", setting]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        rows = watch(run, options.output, 60 * options.minutes)
    finally:
        run.send_signal(signal.SIGINT)
        code = run.wait()
    print("| minutes | updates | learner MB | workers MB |\n|---|---|---|---|")
    for row in rows[:: max(1, len(rows) // 10)]:
        print(f"| {row[0] / 60:.1f} | {row[3]} | {row[1]:.0f} | {row[2]:.0f} |")
    print(f"\ngrowth: learner {growth(rows, 1):+.1f}%, workers {growth(rows, 2):+.1f}%; exit code {code}")
    return 0 if code == 130 else 1


if __name__ == "__main__":
    sys.exit(main())
