"""Importing this makes the helpers beside the unit tests importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit"))
