"""Mathematics: Qwen2.5-Math-1.5B on 7,500 DAPO problems.

Needs 8 GPUs of 80 GiB, the pinned model, `flashreinforce-molt prepare dapo` and `prepare math_eval`.
Look first: `python launchers/qwen_math.py --dry-run`. Then: `flashreinforce-molt doctor --recipe qwen_math`.
"""

import sys

from flashreinforce_molt.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main(recipe="qwen_math", description=__doc__))
