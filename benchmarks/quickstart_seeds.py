"""The quick start over several seeds: held-out accuracy before and after, and the time of the whole job.

    python benchmarks/quickstart_seeds.py --seeds 5 --plot docs/quickstart.svg

Each seed is one process that runs the README's command; `job` is its whole wall time: imports, warm start,
training, eight evaluations, checkpoint and report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flashreinforce_molt.telemetry.svg import Guide, Series, line_chart

ROOT = Path(__file__).parents[1]
STYLE = """
svg { background: #fff; } text { font: 11px system-ui, sans-serif; fill: #62666d; }
.grid { stroke: #eeece8; } .axis { stroke: #cfccc5; } .guide { stroke: #62666d; stroke-dasharray: 4 3; }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; } .faint { stroke-width: 1; opacity: .3; }
.dot { fill: #fff; stroke: currentColor; stroke-width: 1.6; }
.c1 { color: #1f5fa8; } .c2 { color: #c8561b; } .c3 { color: #2c8556; } .c4 { color: #8a4bb0; } .c5 { color: #b3870c; }
"""


def run_seed(seed: int, output: Path) -> tuple[list[dict], list[dict], float]:
    """Evaluations, metrics and wall seconds of one whole job."""
    command = [sys.executable, str(ROOT / "scripts/train_molt.py"), "--recipe", "quickstart"]
    began = time.monotonic()
    subprocess.run(
        [*command, "--output", str(output), "--set", f"seed={seed}"], check=True, stdout=subprocess.DEVNULL
    )
    job = time.monotonic() - began
    evaluations, metrics = (
        [json.loads(line) for line in (output / f"{name}.jsonl").read_text().splitlines()]
        for name in ("evaluation", "metrics")
    )
    return evaluations, metrics, job


def plot(curves: dict[int, list[dict]], path: Path) -> None:
    """Sampled held-out accuracy of every seed, as an SVG that stands alone."""
    series = [
        Series(
            f"seed {seed}",
            [line["update"] for line in lines],
            [line["sampled_accuracy"] for line in lines],
            colour=1 + i % 5,
            dots=True,
        )
        for i, (seed, lines) in enumerate(curves.items())
    ]
    baseline = next(iter(curves.values()))[0]["constant_answer_baseline"]
    chart = line_chart(
        "Held-out accuracy of the quick start",
        series,
        guides=[Guide(baseline, "best constant answer")],
        unit="fraction",
        low=0.0,
        high=1.0,
    )
    opening, _, rest = str(chart).partition(">")
    opening = opening.partition(" data-chart=")[0]
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg" width="760"')
    path.write_text(f"{opening}><style>{STYLE}</style>{rest}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="write the curves as SVG")
    options = parser.parse_args()

    import torch
    import transformers

    print(
        f"python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, {os.cpu_count()} cores\n"
    )
    print(
        "| seed | warm start, sampled | after, sampled | after, greedy | best constant answer | drift mean | lag mean | job |"
    )
    print("|---|---|---|---|---|---|---|---|")
    curves = {}
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(options.seeds):
            evaluations, metrics, job = run_seed(seed, Path(directory) / f"seed-{seed}")
            curves[seed] = evaluations
            first, last = evaluations[0], evaluations[-1]
            drift, lag = (
                sum(line[name] for line in metrics) / len(metrics)
                for name in ("sequence_kl_mean", "policy_lag_mean")
            )
            print(
                f"| {seed} | {first['sampled_accuracy']:.1%} | {last['sampled_accuracy']:.1%} | {last['greedy_accuracy']:.1%} "
                f"| {last['constant_answer_baseline']:.1%} | {drift:.1e} | {lag:.2f} | {job:.0f} s |",
                flush=True,
            )
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
