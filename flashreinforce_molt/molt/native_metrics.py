"""The figures of one update in Molt's logs, from what the loss noted of every row of every rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from flashreinforce_molt.molt.batch_plan import BatchPlan

PREFIX = "flash/"


def update_metrics(
    plan: BatchPlan, rows: Sequence[tuple[str, Mapping[str, float]]], gate: str
) -> dict[str, float]:
    """(trajectory, notes of the loss) of every row with policy tokens in the batch -> metrics under `flash/`.

    Exact for the batch however it was split: sums and maxima over rows, means over whole trajectories.
    """
    drift: defaultdict[str, float] = defaultdict(float)
    admitted: defaultdict[str, float] = defaultdict(float)
    for trajectory, notes in rows:
        drift[trajectory] += notes["drift_sum"]
        admitted[trajectory] += notes["admitted_tokens"]
    count = plan.totals.trajectories
    sequence_kl = [drift[name] / tokens for name, tokens in plan.policy_tokens.items()]
    admission = [admitted[name] / tokens for name, tokens in plan.policy_tokens.items()]

    def total(name: str) -> float:
        return sum(notes[name] for _, notes in rows)

    def largest(name: str) -> float:
        return max(notes[name] for _, notes in rows)

    weight = total("absolute_weight")
    metrics = {
        "trajectories": count,
        "rows": len(rows),
        "scattered_trajectories": len(plan.scattered),
        "policy_tokens": plan.totals.policy_tokens,
        "acceptance_rate": sum(admission) / count,
        "rejected_trajectories": sum(share == 0 for share in admission) if gate != "none" else 0,
        "rejected_tokens": plan.totals.policy_tokens - total("admitted_tokens"),
        "filtered_tokens": total("filtered_tokens"),
        "retained_tokens": total("retained_tokens"),
        "clamped_tokens": total("clamped_tokens"),
        "sequence_kl_mean": sum(sequence_kl) / count,
        "sequence_kl_max": max(sequence_kl),
        "ratio_max": largest("max_ratio"),
        "ratio_max_before_gate": largest("max_ratio_before_gate"),
        "top_token_share": largest("largest_weight") / weight if weight else 0.0,
    }
    return {PREFIX + name: float(value) for name, value in metrics.items()}
