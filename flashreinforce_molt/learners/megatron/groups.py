"""The process groups that this learner communicates over, always named, never looked up by default."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class ParallelGroups:
    """This rank's groups; `from_megatron` takes Megatron's own after `initialize_model_parallel`."""

    tp: dist.ProcessGroup
    """Tensor parallel: parts of every matrix and of the vocabulary."""
    cp: dist.ProcessGroup
    """Context parallel: parts of every row's tokens."""
    dp: dist.ProcessGroup
    """Data parallel without context parallel: other trajectories."""
    pp: dist.ProcessGroup
    """Pipeline parallel: other layers."""

    @classmethod
    def from_megatron(cls) -> ParallelGroups:
        from megatron.core import parallel_state

        return cls(
            tp=parallel_state.get_tensor_model_parallel_group(),
            cp=parallel_state.get_context_parallel_group(),
            dp=parallel_state.get_data_parallel_group(with_context_parallel=False),
            pp=parallel_state.get_pipeline_model_parallel_group(),
        )

    @property
    def has_logits(self) -> bool:
        """This rank holds the last pipeline stage."""
        return self.pp.rank() == self.pp.size() - 1
