"""Reports of microbatches on many ranks -> the report of their batch, exactly: no means of means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from flashreinforce_molt.learners.megatron.groups import ParallelGroups
from flashreinforce_molt.objective import merge_stats


@dataclass(frozen=True)
class BatchReport:
    """What the loss functions said of a whole batch."""

    loss: float
    entropy_sum: float
    stats: dict[str, Any]
    """Statistics of `flashreinforce_loss`, on the CPU."""


def merge_reports(reports: Sequence[dict[str, Any]], groups: ParallelGroups) -> BatchReport:
    """The whole batch's report, on every rank; collective over the data- and pipeline-parallel groups.

    `reports` are this rank's, as the schedule returned them; only the last pipeline stage has any. Ranks of one
    tensor- or context-parallel group hold equal reports, so nothing is counted twice.
    """
    merged = None
    if groups.has_logits:
        mine = [on_cpu(report) for report in reports if report]
        everyone: list[Any] = [None] * groups.dp.size()
        dist.all_gather_object(everyone, mine, group=groups.dp)
        shards = [report for part in everyone for report in part]
        merged = BatchReport(
            loss=sum(float(report["loss"]) for report in shards),
            entropy_sum=sum(float(report["entropy_sum"]) for report in shards),
            stats=merge_stats([report["stats"] for report in shards]),
        )
    return share_with_stages(merged, groups)


def share_with_stages(report: BatchReport | None, groups: ParallelGroups) -> BatchReport:
    """The last pipeline stage's report, on every stage."""
    held = [report]
    if groups.pp.size() > 1:
        last = dist.get_global_rank(groups.pp, groups.pp.size() - 1)
        dist.broadcast_object_list(held, src=last, group=groups.pp)
    shared = held[0]
    assert shared is not None, "the last pipeline stage has a report"
    return shared


def on_cpu(value: Any) -> Any:
    """Tensors, also inside a dictionary, on the CPU."""
    if isinstance(value, dict):
        return {name: on_cpu(item) for name, item in value.items()}
    return value.cpu() if isinstance(value, torch.Tensor) else value
