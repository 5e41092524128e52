"""Time and peak memory of `prepare dapo` on files of the shape of DAPO-Math-17k.

    python benchmarks/prepare_dapo.py

Makes the files itself: `published` has 1,791,700 rows in which 17,398 questions (519 of them once more, a third of
those with another answer) come a hundred times, like the published set; `distinct` has as many rows and no question
twice, the worst case for memory. Each preparation runs in a process of its own, whose largest resident size and
wall time are shown. With --rows another number of rows, with --keep DIR the files stay.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PUBLISHED_ROWS = 1_791_700
QUESTIONS, TWICE = 17_398, 519
BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
BEHIND = '\n\nRemember to put your answer on its own line after "Answer:".'


def rows_of(numbers: range, answer_shift: int = 0) -> list[dict]:
    rows = []
    for number in numbers:
        rng = random.Random(number)
        words = " ".join(f"word{rng.randrange(2000)}" for _ in range(40))
        rows.append(
            {
                "data_source": "math_dapo",
                "prompt": [{"content": f"{BEFORE}Problem {number}: {words}{BEHIND}", "role": "user"}],
                "ability": "MATH",
                "reward_model": {
                    "ground_truth": str((number + answer_shift * (number % 3 == 0)) % 1000),
                    "style": "rule-lighteval/MATH_v2",
                },
                "extra_info": {"index": f"{number}-{answer_shift}"},
            }
        )
    return rows


def tables(shape: str, rows: int) -> Iterator:
    import pyarrow as pa

    if shape == "published":
        table = pa.Table.from_pylist(rows_of(range(QUESTIONS)) + rows_of(range(TWICE), answer_shift=1))
        for start in range(0, rows, table.num_rows):
            yield table.slice(0, min(table.num_rows, rows - start))
    else:
        for start in range(0, rows, 20_000):
            yield pa.Table.from_pylist(rows_of(range(start, min(start + 20_000, rows))))


def write(path: Path, shape: str, rows: int) -> None:
    import pyarrow.parquet as pq

    writer = None
    for table in tables(shape, rows):
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()


def measured(source: Path, output: Path) -> dict:
    """What one preparation took, as its own process saw it."""
    script = Path(__file__).resolve()
    done = subprocess.run(
        [sys.executable, str(script), "--measure", str(source), str(output)],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(script.parents[1]), os.environ.get("PYTHONPATH", "")]),
        },
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(source: Path, output: Path) -> None:
    from flashreinforce_molt.data.prepare import Request, prepare

    before = time.perf_counter()
    report = prepare("dapo", Request(output, {"": source}, lock_file=None, say=lambda line: None))
    seconds = time.perf_counter() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    counts = json.loads(Path(report).read_text())
    kept = ("rows", "repeated", "conflicting_questions", "distinct", "chosen")
    print(
        json.dumps(
            {"seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak} | {name: counts[name] for name in kept}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=PUBLISHED_ROWS)
    parser.add_argument(
        "--keep", metavar="DIR", help="folder for the files, which stay there and are used again"
    )
    parser.add_argument("--measure", nargs=2, metavar=("SOURCE", "OUTPUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*map(Path, options.measure))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print("| shape | rows | file, MB | distinct | conflicting | wall, s | CPU, s | peak memory, MB |")
        print("|---|---|---|---|---|---|---|---|")
        for shape in ("published", "distinct"):
            path = folder / f"{shape}-{options.rows}.parquet"
            if not path.exists():
                write(path, shape, options.rows)
            took = measured(path, Path(temporary) / shape)
            print(
                f"| {shape} | {took['rows']:,} | {path.stat().st_size / 1e6:.0f} | {took['distinct']:,} | "
                f"{took['conflicting_questions']:,} | {took['seconds']:.1f} | {took['cpu_seconds']:.1f} | {took['peak_mb']:.0f} |"
            )


if __name__ == "__main__":
    main()
