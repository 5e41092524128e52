"""The FlashREINFORCE objective: pure functions named after the paper's terms, and the loss they make."""

from flashreinforce_molt.objective.aggregate import token_denominators
from flashreinforce_molt.objective.drift import bernoulli_kl, importance_ratio
from flashreinforce_molt.objective.failure_filter import failure_token_filter, kept_tokens
from flashreinforce_molt.objective.gate import sequence_gate, token_gate
from flashreinforce_molt.objective.loss import flashreinforce_loss
from flashreinforce_molt.objective.report import merge_stats
from flashreinforce_molt.objective.rewards import center_rewards
from flashreinforce_molt.objective.rows import TrajectoryRows, group_rows
from flashreinforce_molt.objective.totals import BatchTotals

__all__ = [
    "BatchTotals",
    "TrajectoryRows",
    "bernoulli_kl",
    "center_rewards",
    "failure_token_filter",
    "flashreinforce_loss",
    "group_rows",
    "importance_ratio",
    "kept_tokens",
    "merge_stats",
    "sequence_gate",
    "token_denominators",
    "token_gate",
]
