"""`flashreinforce_loss` as a NeMo loss: typed ports, and options that a `_target_` config can set."""

from __future__ import annotations

from typing import Any

from nemo.core.classes import Loss, typecheck
from nemo.core.neural_types import LogprobsType, LossType, MaskType, NeuralType
from torch import Tensor

from flashreinforce_molt.nemo.elements import (
    EntropyType,
    FailureType,
    RewardType,
    StatisticsType,
    TrajectoryIdType,
)
from flashreinforce_molt.objective import BatchTotals, flashreinforce_loss
from flashreinforce_molt.objective.validate import validate_options

_TOKENS, _ROWS = ("B", "T"), ("B",)


class FlashReinforceLoss(Loss):
    """The FlashREINFORCE loss of a fresh batch; options and behaviour are those of `flashreinforce_loss`.

    NeMo checks the rank and the element type of every input, the function checks sizes, dtypes and values. NeMo
    takes inputs by keyword only. Raises ValueError for an option out of its range when it is constructed.
    """

    def __init__(
        self,
        delta: float = 3e-3,
        negative_token_fraction: float = 1.0,
        ratio_gradient: str = "detached",
        log_ratio_limit: float | None = None,
        aggregation: str = "sample-mean",
        constant_length: int | None = None,
        gate: str = "sequence",
        importance_correction: bool = True,
    ) -> None:
        super().__init__()
        self.options: dict[str, Any] = {
            "delta": delta,
            "negative_token_fraction": negative_token_fraction,
            "ratio_gradient": ratio_gradient,
            "log_ratio_limit": log_ratio_limit,
            "aggregation": aggregation,
            "constant_length": constant_length,
            "gate": gate,
            "importance_correction": importance_correction,
        }
        validate_options(**self.options)

    @property
    def input_types(self) -> dict[str, NeuralType]:
        """[B, T] for tokens and [B] for rows, as in `flashreinforce_loss`."""
        return {
            "log_probs": NeuralType(_TOKENS, LogprobsType()),
            "behavior_log_probs": NeuralType(_TOKENS, LogprobsType()),
            "rewards": NeuralType(_ROWS, RewardType()),
            "action_mask": NeuralType(_TOKENS, MaskType()),
            "entropies": NeuralType(_TOKENS, EntropyType(), optional=True),
            "failures": NeuralType(_ROWS, FailureType(), optional=True),
            "trajectory_ids": NeuralType(_ROWS, TrajectoryIdType(), optional=True),
            "totals": NeuralType(None, StatisticsType(), optional=True),
        }

    @property
    def output_types(self) -> dict[str, NeuralType]:
        """A scalar that carries the gradient, and what `flashreinforce_loss` reports beside it."""
        return {
            "loss": NeuralType(elements_type=LossType()),
            "statistics": NeuralType(None, StatisticsType()),
        }

    @typecheck()
    def forward(
        self,
        log_probs: Tensor,
        behavior_log_probs: Tensor,
        rewards: Tensor,
        action_mask: Tensor,
        entropies: Tensor | None = None,
        failures: Tensor | None = None,
        trajectory_ids: Tensor | None = None,
        totals: BatchTotals | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss of a batch, or of one shard of it when `totals` counts the whole."""
        return flashreinforce_loss(
            log_probs,
            behavior_log_probs,
            rewards,
            action_mask,
            entropies=entropies,
            failures=failures,
            trajectory_ids=trajectory_ids,
            totals=totals,
            **self.options,
        )
