"""Trajectories split over microbatches or ranks: score everything, decide once, then train with the decisions.

The objective is a function of the batch's log-probs. Its derivative by them, taken once on all of them together,
turns the training pass into a weighted sum: by the chain rule sum_t (dL / d log pi_t) log pi_t has L's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from flashreinforce_molt.learners.megatron.loss import LossSettings
from flashreinforce_molt.learners.megatron.reports import BatchReport, on_cpu, share_with_stages
from flashreinforce_molt.objective import BatchTotals, flashreinforce_loss
from flashreinforce_molt.trajectory import PaddedRows

Scored = tuple[PaddedRows, Tensor, Tensor]
"""Rows of one microbatch with their log-probs and entropies [R, T-1]."""


def weigh_batch(
    parts: Sequence[PaddedRows | None],
    reports: Sequence[dict[str, Any]],
    totals: BatchTotals,
    settings: LossSettings,
) -> tuple[list[Tensor | None], BatchReport]:
    """dL / d log pi for each of this rank's microbatches, and the report of the batch.

    `reports` are what the schedule returned from a pass with `megatron_scoring_func` over `parts`. Collective over
    the data- and pipeline-parallel groups. Only the last pipeline stage gets weights; the other stages need none.
    """
    groups = settings.groups
    if not groups.has_logits:
        return [None] * len(parts), share_with_stages(None, groups)
    mine = [
        (rows.to("cpu"), *(on_cpu(report[name]) for name in ("log_probs", "entropies")))
        if rows is not None
        else None
        for rows, report in zip(parts, reports, strict=True)
    ]
    gathered: list[Any] = [None] * groups.dp.size()
    dist.all_gather_object(gathered, mine, group=groups.dp)
    everything = [scored for rank in gathered for scored in rank if scored is not None]
    before = sum(scored is not None for rank in gathered[: groups.dp.rank()] for scored in rank)
    weights, report = batch_weights(everything, totals, settings.objective)
    own = iter(weights[before:])
    return [None if rows is None else next(own).to(rows.rewards.device) for rows in parts], share_with_stages(
        report, groups
    )


def batch_weights(
    scored: Sequence[Scored], totals: BatchTotals, objective: dict[str, Any]
) -> tuple[list[Tensor], BatchReport]:
    """dL / d log pi [R, T-1] of each part of a batch, and the report of the batch."""
    width = max(rows.action_mask.shape[1] for rows, _, _ in scored)

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(
            [F.pad(part, (0, width - part.shape[1])) if part.dim() == 2 else part for part in parts]
        )

    def labels(name: str) -> Tensor:
        return joined([getattr(rows, name) for rows, _, _ in scored])

    mask = labels("action_mask")
    log_probs = joined([part.detach() for _, part, _ in scored]).requires_grad_()
    entropies = joined([part for _, _, part in scored])
    loss, stats = flashreinforce_loss(
        log_probs,
        labels("behavior_log_probs"),
        labels("rewards"),
        mask,
        failures=None if scored[0][0].failures is None else labels("failures"),
        trajectory_ids=labels("trajectory_ids"),
        entropies=entropies,
        **objective,
        totals=totals,
    )
    (weights,) = torch.autograd.grad(loss, log_probs)
    report = BatchReport(loss.item(), torch.where(mask, entropies, 0).sum().item(), stats)
    rows_of_parts = weights.split([len(rows.action_mask) for rows, _, _ in scored])
    return [
        part[:, : rows.action_mask.shape[1]] for part, (rows, _, _) in zip(rows_of_parts, scored, strict=True)
    ], report
