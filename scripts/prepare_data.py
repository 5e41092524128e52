"""Prepare the data of a recipe: `python scripts/prepare_data.py dapo`."""

import sys

from flashreinforce_molt.data.command import main

if __name__ == "__main__":
    sys.exit(main())
