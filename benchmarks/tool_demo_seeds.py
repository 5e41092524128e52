"""The calculator demo over several seeds, with and without its tool, as the table of docs/environments.md.

    python benchmarks/tool_demo_seeds.py --seeds 3 --output runs/tool_demo

Each row is one process that runs `--recipe tool_demo`; a run that is there already is read and not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """| seed | tool | accuracy before | accuracy after | greedy after | best constant answer | calls before | calls after | \
malformed after | job |
|---|---|---|---|---|---|---|---|---|---|"""
ENDS = 10
"""Updates over which the training metrics at either end are averaged."""


def run(seed: int, variant: Sequence[str], output: Path) -> None:
    """One whole job; its wall time is kept beside its files."""
    command = [sys.executable, str(ROOT / "scripts/train_molt.py"), "--recipe", "tool_demo", *variant]
    began = time.monotonic()
    subprocess.run(
        [*command, "--set", f"seed={seed}", "--output", str(output)], check=True, stdout=subprocess.DEVNULL
    )
    (output / "job_s.txt").write_text(f"{time.monotonic() - began:.0f}\n")


def row(seed: int, tool: str, output: Path) -> str:
    """One line of the table."""
    evaluations, metrics = (
        [json.loads(line) for line in (output / f"{name}.jsonl").read_text().splitlines()]
        for name in ("evaluation", "metrics")
    )

    def mean(name: str, lines: list[dict[str, float]]) -> str:
        return f"{statistics.fmean(line[name] for line in lines):.2f}"

    first, last = evaluations[0], evaluations[-1]
    cells = [
        str(seed),
        tool,
        f"{first['sampled_accuracy']:.1%}",
        f"{last['sampled_accuracy']:.1%}",
        f"{last['greedy_accuracy']:.1%}",
        f"{last['constant_answer_baseline']:.1%}",
        mean("tool_calls_mean", metrics[:ENDS]),
        mean("tool_calls_mean", metrics[-ENDS:]),
        mean("malformed_calls_mean", metrics[-ENDS:]),
        f"{(output / 'job_s.txt').read_text().strip()} s",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/tool_demo"))
    args = parser.parse_args()
    print(HEAD)
    for tool, variant in (("yes", []), ("no", ["--variant", "no_tool"])):
        for seed in range(args.seeds):
            output = args.output / f"tool_{tool}_seed_{seed}"
            if not (output / "job_s.txt").exists():
                run(seed, variant, output)
            print(row(seed, tool, output), flush=True)


if __name__ == "__main__":
    main()
