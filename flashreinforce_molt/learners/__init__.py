"""Learners: one optimizer step for each fresh batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

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
        """Take one optimizer step; NonFiniteUpdateError, with nothing changed, when it is not finite."""
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


@runtime_checkable
class ReportsLogProbs(Protocol):
    """A learner that can also say what its update would compute with; the on-policy check asks for it."""

    def log_probs(self, batch: TrajectoryBatch, *, temperature: float | None = None) -> dict[int, Tensor]:
        """log pi [P] of each trajectory's policy tokens by its id, at `rollout.temperature` or another one."""
        ...


def make_learner(engine: str, policy: Policy, config: Config) -> Learner:
    """The learner of an engine: `local` on plain torch, or `megatron`."""
    if engine == "megatron":
        from flashreinforce_molt.learners.megatron import start_team

        return start_team(policy, config)
    from flashreinforce_molt.learners.torch_learner import TorchLearner

    return TorchLearner(policy.model, config)
