"""The areas of `scripts/fuzz.py`: each makes one case of hostile or sound input and judges what came of it."""
