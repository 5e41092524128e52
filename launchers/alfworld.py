"""Household text games: Qwen2.5-7B-Instruct on ALFWorld, up to 50 turns.

Needs 8 GPUs of 80 GiB, the pinned model, ALFWORLD_DATA, `flashreinforce-molt prepare alfworld`, the games (`[alfworld]`).
Look first: `python launchers/alfworld.py --dry-run`. Then: `flashreinforce-molt doctor --recipe alfworld`.
"""

import sys

from flashreinforce_molt.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main(recipe="alfworld", description=__doc__))
