"""Train or review a FlashREINFORCE recipe: `python scripts/train_molt.py --recipe quickstart`."""

import sys

from flashreinforce_molt.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main())
