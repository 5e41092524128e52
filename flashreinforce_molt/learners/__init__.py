"""Learners: one optimizer step for each fresh batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from flashreinforce_molt.config import Config

if TYPE_CHECKING:
    from torch import Tensor

    from flashreinforce_molt.learners.torch_learner import UpdateResult
    from flashreinforce_molt.models import Policy
    from flashreinforce_molt.trajectory import TrajectoryBatch


class Learner(Protocol):
    """What a run asks of a learner. After an update the policy's model holds the new weights."""

    updates_done: int

    def update(self, batch: TrajectoryBatch) -> UpdateResult:
        """Take one optimizer step; NonFiniteUpdateError, with nothing changed, when its gradient is not finite."""
        ...

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the weights; every learner of a model uses the same names."""
        ...

    def load_state(self, tensors: dict[str, Tensor], updates_done: int) -> None:
        """Go on from what `state_tensors` of any learner gave."""
        ...

    def close(self) -> None:
        """End what the learner started; safe to call twice."""
        ...


def make_learner(engine: str, policy: Policy, config: Config) -> Learner:
    """The learner of an engine: `local` on plain torch, or `megatron`."""
    if engine == "megatron":
        from flashreinforce_molt.learners.megatron import start_team

        return start_team(policy, config)
    from flashreinforce_molt.learners.torch_learner import TorchLearner

    return TorchLearner(policy.model, config)
