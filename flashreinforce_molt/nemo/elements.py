"""Element types that NeMo does not have, for ports of the loss."""

from __future__ import annotations

from nemo.core.neural_types import ElementType


class RewardType(ElementType):
    """One number for a trajectory, in the environment's own units."""


class EntropyType(ElementType):
    """Entropy of the whole categorical distribution at a token, in nats."""


class FailureType(ElementType):
    """Whether a trajectory failed, as its environment said."""


class TrajectoryIdType(ElementType):
    """The trajectory that a row belongs to."""


class StatisticsType(ElementType):
    """Detached figures of a batch, by name."""
