"""Mathematics with a Python tool on a mixture of experts: Qwen3-30B-A3B, up to 10 turns.

Needs 24 GPUs of 80 GiB on three machines joined by Ray, the pinned model, `flashreinforce-molt prepare tools`, the sandbox.
Look first: `python launchers/moe.py --dry-run`. Then: `flashreinforce-molt doctor --recipe moe`.
"""

import sys

from flashreinforce_molt.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main(recipe="moe", description=__doc__))
