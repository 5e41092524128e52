"""Mathematics with a Python tool: Qwen2.5-7B-Instruct, up to 10 turns.

Needs 8 GPUs of 80 GiB, the pinned model, `flashreinforce-molt prepare tools`, and the sandbox (`[tools]`).
Look first: `python launchers/python_tools.py --dry-run`. Then: `flashreinforce-molt doctor --recipe python_tools`.
"""

import sys

from flashreinforce_molt.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main(recipe="python_tools", description=__doc__))
