"""The dry run: every flag with its value and source, the checks, the resource plan, the exact command.

Nothing here needs torch, a GPU, Molt or data.
"""

from flashreinforce_molt.review.as_data import as_data
from flashreinforce_molt.review.commands import Request
from flashreinforce_molt.review.document import Review, review_experiment

__all__ = ["Request", "Review", "as_data", "review_experiment"]
