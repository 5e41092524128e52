"""The committed reviews: `python tests/unit/golden_reviews.py` writes them anew after a change that is meant."""

import contextlib
import io
import os
from pathlib import Path

from flashreinforce_molt.cli import train_main

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("golden")
GOLDEN = {
    "r1.txt": "--recipe r1",
    "r1.json": "--recipe r1 --format json",
    "moe_stability.txt": "--recipe moe --variant stability --set optim.lr=2e-6",
    "alfworld_grpo.json": "--recipe alfworld --variant grpo --format json",
    "mistakes.txt": "--recipe qwen_math --set rollout.top_p=0.9 --set train.batch_size=100 --set optim.learning_rate=1",
    "difference.txt": "--recipe r1 --diff :gate_5e3,no_trust",
}


def produce(command):
    """Exit code and standard output of a dry run in the checkout's root."""
    output, before = io.StringIO(), Path.cwd()
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(output):
            code = train_main([*command.split(), "--dry-run"])
    finally:
        os.chdir(before)
    return code, output.getvalue()


if __name__ == "__main__":
    os.environ.pop("ALFWORLD_DATA", None)
    FOLDER.mkdir(exist_ok=True)
    for name, command in GOLDEN.items():
        (FOLDER / name).write_text(produce(command)[1], encoding="utf-8")
        print(f"wrote {name}")
