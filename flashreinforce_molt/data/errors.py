"""The one exception for data that are absent or not what they should be."""

from __future__ import annotations


class DataError(ValueError):
    """The message names the file and row, or the data set, and what to do about it."""
