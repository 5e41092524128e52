"""Verified answers, and scorers of other libraries run where they can be stopped."""

from flashreinforce_molt.graders.boxed import last_box
from flashreinforce_molt.graders.math_grader import VERDICTS, MathGrader, Verdict
from flashreinforce_molt.graders.pool import GradingError, GradingPool, GradingTimeout

__all__ = ["VERDICTS", "GradingError", "GradingPool", "GradingTimeout", "MathGrader", "Verdict", "last_box"]
