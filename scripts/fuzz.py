"""Feed hostile and sound input to everything that reads some, and count what comes of it.

    python scripts/fuzz.py --cases 100000 --seed 0

Every case must end with a right answer or a clear refusal. The first that does not stops the run, and its number
repeats it: `--only AREA --case N`.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

SHARES = {"objective": 30, "trajectories": 22, "recipes": 20, "metrics": 12, "data": 10, "checkpoints": 6}
"""Cases of each area in a hundred."""
LIMIT_S = 20


def main() -> int:
    """Run the cases, in processes of their own, so that one that kills its process is named too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases")
    parser.add_argument("--only", choices=SHARES, metavar="AREA", help=f"one area: {', '.join(SHARES)}")
    parser.add_argument("--case", type=int, metavar="N", help="run case N alone, to see its traceback")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the cases")
    options = parser.parse_args()
    if options.case is not None:
        options.jobs = 1
    began = time.monotonic()
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared) as directory:
        if failed(options, Path(directory)):
            return 1
        counts: Counter[str] = Counter()
        for path in Path(directory).glob("*.json"):
            counts.update(json.loads(path.read_text()))
    print(table(counts))
    print(f"{sum(counts.values()):,} cases, seed {options.seed}, {time.monotonic() - began:.0f} s")
    return 0


def failed(options: argparse.Namespace, directory: Path) -> bool:
    """Whether a process met a case that is neither answered nor refused; the others are stopped then."""
    at_work: dict[int, mmap.mmap] = {}
    for job in range(options.jobs):
        current = mmap.mmap(-1, 8)  # the number of the case at work, seen by both processes
        child = os.fork()
        if child == 0:
            os._exit(run(options, job, current, directory / str(job)))
        at_work[child] = current
    while at_work:
        child, status = os.wait()
        current = at_work.pop(child)
        if os.WIFSIGNALED(status):
            number = struct.unpack("q", current)[0]
            words = f"case {number} of {area_of(options, number)} killed its process"
            print(f"{words}: {signal.strsignal(os.WTERMSIG(status))}", file=sys.stderr)
        if status:
            for other in at_work:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            return True
    return False


def area_of(options: argparse.Namespace, number: int) -> str:
    """The area of a case."""
    return options.only or random.Random(f"{options.seed} {number}").choices([*SHARES], [*SHARES.values()])[0]


def run(options: argparse.Namespace, job: int, current: mmap.mmap, directory: Path) -> int:
    """The cases of one process, in order; 1 at the first that is neither answered nor refused."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("error", RuntimeWarning)
    signal.signal(signal.SIGALRM, _too_long)
    directory.mkdir()
    os.chdir(directory)
    counts: Counter[str] = Counter()
    numbers = range(job, options.cases, options.jobs) if options.case is None else [options.case]
    for number in numbers:
        current[:] = struct.pack("q", number)
        area = area_of(options, number)
        folder = directory / area
        folder.mkdir(exist_ok=True)
        module = import_module(f"fuzzing.{area}")
        signal.alarm(LIMIT_S)
        try:
            outcome = module.case(random.Random(f"{options.seed} {number} {area}"), folder)
        except Exception:
            traceback.print_exc()
            repeat = f"--seed {options.seed} --only {area} --case {number}"
            print(f"case {number} of {area} failed; again: scripts/fuzz.py {repeat}", file=sys.stderr)
            return 1
        finally:
            signal.alarm(0)
        counts[f"{area} {outcome}"] += 1
    directory.with_suffix(".json").write_text(json.dumps(counts))
    return 0


def table(counts: Counter[str]) -> str:
    """Cases by area and outcome."""
    lines = [f"{'area':14}{'answer':>10}{'refused':>10}"]
    for area in SHARES:
        lines.append(f"{area:14}{counts[area + ' answer']:>10,}{counts[area + ' refused']:>10,}")
    return "\n".join(lines)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"a case took more than {LIMIT_S} s")


if __name__ == "__main__":
    sys.exit(main())
