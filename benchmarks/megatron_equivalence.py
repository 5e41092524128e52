"""Worst relative gradient error of the Megatron learner against one process: layout x case.

    PYTHONPATH=tests/distributed python benchmarks/megatron_equivalence.py [LAYOUT ...]

Every number is the largest difference of any element of any parameter's gradient on any rank, as a share of that
parameter's largest gradient; the reference is `TorchLearner` on the transformers model. float32, gloo, real
megatron-core. The cases hold rejected, filtered and multi-row trajectories, and two that straddle the cut between
context-parallel ranks so that a local decision would differ. The same table is asserted by
tests/distributed/test_megatron_learner.py.
"""

from __future__ import annotations

import argparse
import time
import warnings

import megatron.core
import torch
from equivalence import CASES, LAYOUTS, measure

import flashreinforce_molt.learners.megatron.learner  # noqa: F401  # before the forks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help="one of the table's; default: all")
    chosen = parser.parse_args().layouts or list(LAYOUTS)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"megatron-core {megatron.core.__version__}, torch {torch.__version__}\n")
    print("| layout | model | " + " | ".join(CASES) + " | s |")
    print("|---" * (len(CASES) + 3) + "|")
    for layout in chosen:
        started = time.perf_counter()
        errors = measure(layout)
        cells = " | ".join(f"{errors[case]:.1e}" for case in CASES)
        print(
            f"| {layout} | {LAYOUTS[layout][0]} | {cells} | {time.perf_counter() - started:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
