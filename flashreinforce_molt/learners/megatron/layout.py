"""How the learner's ranks share the model and the batch."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from flashreinforce_molt.config import SettingError


@dataclass(frozen=True)
class MegatronLayout:
    """Sizes of the parallel groups; the data-parallel size is what remains of the world."""

    tensor_parallel: int = 1
    context_parallel: int = 1
    """Above 1 needs an attention that supports it: Transformer Engine's."""
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    """Ranks that share the experts of a mixture; drawn from the tensor-, context- and data-parallel ranks."""
    sequence_parallel: bool = False
    """Also share norms and dropout along the tokens over the tensor-parallel ranks; needs Transformer Engine."""
    distributed_optimizer: bool = True
    """Share master weights and moments over the data-parallel ranks."""
    calculate_per_token_loss: bool = False
    """Let Megatron divide gradients by a count at the end; the gradient is the same either way."""
    rows_per_microbatch: int | None = None
    """Cut rows without regard to trajectories, which costs a second forward pass; None: whole trajectories."""

    def data_parallel(self, world: int) -> int:
        """Data-parallel size in a world of so many ranks; SettingError where the sizes do not fit."""
        model = self.tensor_parallel * self.context_parallel * self.pipeline_parallel
        if world % model:
            raise SettingError(
                f"{world} learner ranks cannot be shared out by tensor parallel {self.tensor_parallel} x context "
                f"parallel {self.context_parallel} x pipeline parallel {self.pipeline_parallel}: use a multiple of {model}"
            )
        if (world // self.pipeline_parallel) % self.expert_parallel:
            raise SettingError(
                f"expert parallel {self.expert_parallel} does not divide the {world // self.pipeline_parallel} ranks "
                "of a pipeline stage"
            )
        return world // model

    @property
    def slot_multiple(self) -> int:
        """What the padded length of a row must be divisible by."""
        cut = 2 * self.context_parallel if self.context_parallel > 1 else 1
        return lcm(cut, cut * self.tensor_parallel if self.sequence_parallel else 1)
