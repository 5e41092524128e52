"""The FlashREINFORCE loss for Megatron's schedules: the same gradient as one process, under every layout.

One objective, no second copy of it. Log-probs are two numbers per token, so every rank that sees a part of a
trajectory simply gathers the parts (as constants) and calls `flashreinforce_loss` on whole trajectories: gate,
filter and T_i cannot depend on where the tokens live, and the gradient flows through this rank's own slots.

* Trajectories whole in their microbatch (the usual case): `megatron_loss_func`, one pass.
* Rows of a trajectory in several microbatches or data-parallel ranks: a forward-only pass with
  `megatron_scoring_func`, then `weigh_batch` on all scores, then the training pass with `megatron_weighted_func`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flashreinforce_molt.learners.megatron.context import context_slots, gather_slots
from flashreinforce_molt.learners.megatron.groups import ParallelGroups
from flashreinforce_molt.learners.megatron.vocab_parallel import vocab_parallel_log_probs_and_entropy
from flashreinforce_molt.objective import BatchTotals, flashreinforce_loss
from flashreinforce_molt.trajectory import PaddedRows


@dataclass(frozen=True)
class LossSettings:
    """What the loss functions share over a run."""

    groups: ParallelGroups
    calculate_per_token_loss: bool
    """As in the `TransformerConfig`."""
    vocab_size: int | None = None
    """True size of a padded vocabulary."""
    temperature: float = 1.0
    """The sampler's."""
    chunk_tokens: int = 1024
    """Tokens whose float32 logits exist at the same time."""
    objective: dict[str, Any] = field(default_factory=dict)
    """Keywords of `flashreinforce_loss`: delta, gate, aggregation, ..."""


def megatron_loss_func(
    output_tensor: Tensor,
    *,
    rows: PaddedRows | None,
    totals: BatchTotals,
    num_microbatches: int,
    settings: LossSettings,
) -> tuple[Any, ...]:
    """Loss of one microbatch of whole trajectories, as Megatron's schedules expect it from a `loss_func`.

    Bind everything but `output_tensor` with functools.partial. `rows` are the microbatch's, the same on all of its
    tensor- and context-parallel ranks; None is a filler that gives a rank without trajectories the same number of
    microbatches. `totals` and `num_microbatches` are of the whole batch: B, T_i and the baseline are counted before
    anything is split.

    The report holds `loss` (this microbatch's part of the batch loss), `entropy_sum` and `stats`, or is empty for
    a filler; `merge_reports` makes those of all microbatches and ranks into the batch's.
    """
    if rows is None:
        return _returned(_nothing(output_tensor), {}, num_microbatches, settings)
    log_probs, entropies = _score(output_tensor, rows, settings)
    loss, stats = flashreinforce_loss(
        log_probs, **rows.objective_inputs(), entropies=entropies, **settings.objective, totals=totals
    )
    report = {
        "loss": loss.detach().clone(),  # the schedule scales what it is given in place
        "entropy_sum": torch.where(rows.action_mask, entropies, 0).sum(),
        "stats": stats,
    }
    return _returned(loss, report, num_microbatches, settings)


def megatron_scoring_func(
    output_tensor: Tensor, *, rows: PaddedRows | None, settings: LossSettings
) -> tuple[Any, ...]:
    """For a forward-only pass: the report holds `log_probs` and `entropies` [R, T-1] of the rows, or is empty."""
    if rows is None:
        return _nothing(output_tensor), {}
    with torch.no_grad():
        log_probs, entropies = _score(output_tensor, rows, settings)
    return _nothing(output_tensor), {"log_probs": log_probs, "entropies": entropies}


def megatron_weighted_func(
    output_tensor: Tensor,
    *,
    rows: PaddedRows | None,
    weights: Tensor | None,
    num_microbatches: int,
    settings: LossSettings,
) -> tuple[Any, ...]:
    """Second pass over split trajectories: sum of `weights` [R, T-1] times log pi, whose gradient is the loss's."""
    if rows is None or weights is None:
        return _returned(_nothing(output_tensor), {}, num_microbatches, settings)
    log_probs, _ = _score(output_tensor, rows, settings, with_entropy=False)
    surrogate = torch.where(rows.action_mask, weights * log_probs, 0).sum()
    return _returned(surrogate, {}, num_microbatches, settings)


def _score(
    logits: Tensor, rows: PaddedRows, settings: LossSettings, with_entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """log pi [R, T-1] of the rows' targets, differentiable in this rank's slots, and entropies (0 when not asked)."""
    cp = settings.groups.cp
    width = rows.targets.shape[1]
    slots = context_slots(logits.shape[1] * cp.size(), cp.size(), cp.rank()).to(logits.device)
    targets = F.pad(rows.targets, (0, logits.shape[1] * cp.size() - width))[:, slots]
    log_probs, entropies = vocab_parallel_log_probs_and_entropy(
        logits,
        targets,
        settings.groups.tp,
        vocab_size=settings.vocab_size,
        temperature=settings.temperature,
        chunk_tokens=settings.chunk_tokens,
        with_entropy=with_entropy,
    )
    if entropies is None:
        entropies = torch.zeros_like(log_probs.detach())
    both = gather_slots(torch.stack([log_probs, entropies]), cp)[..., :width]
    return both[0], both[1].detach()


def _nothing(output_tensor: Tensor) -> Tensor:
    """Zero, connected to the graph, whatever the logits hold."""
    return (
        torch.where(torch.zeros((), dtype=torch.bool, device=output_tensor.device), output_tensor, 0)
        .sum()
        .float()
    )


def _returned(
    loss: Tensor, report: dict[str, Any], num_microbatches: int, settings: LossSettings
) -> tuple[Any, ...]:
    """What the schedule must get so that the summed gradient is that of sum(loss) over microbatches and ranks.

    calculate_per_token_loss=False: the schedule multiplies by cp / M and DistributedDataParallel divides by dp cp.
    calculate_per_token_loss=True: nothing is scaled until `finalize_model_grads` divides by the sum of the counts
    over microbatches, dp and cp; counting one per microbatch, on one context-parallel rank, makes that M dp. So the
    same number is right for both.
    """
    groups = settings.groups
    scaled = loss * (num_microbatches * groups.dp.size())
    if not settings.calculate_per_token_loss:
        return scaled, report
    count = torch.tensor(int(groups.cp.rank() == 0), dtype=torch.int, device=loss.device)
    return scaled, count, report
