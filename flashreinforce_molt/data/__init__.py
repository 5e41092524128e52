"""Training and evaluation data: prepared once, with every count, and read in an order that a run can resume."""

from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.data.rows import PreparedRows, TrainingOrder

__all__ = ["DataError", "PreparedRows", "TrainingOrder"]
