"""Long chains of thought: DeepSeek-R1-Distill-Qwen-1.5B on 1,460 MATH problems.

Needs 8 GPUs of 80 GiB, the pinned model, `flashreinforce-molt prepare sanity_r1` and `prepare math_eval`.
Look first: `python launchers/r1.py --dry-run`. Then: `flashreinforce-molt doctor --recipe r1`.
"""

import sys

from flashreinforce_molt.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main(recipe="r1", description=__doc__))
