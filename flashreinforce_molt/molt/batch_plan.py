"""What has to be known of a whole batch before the first of its microbatches is trained on.

Molt spreads the rows of a batch over data-parallel ranks and microbatches. B, T_i and the baseline belong to the
batch; the gate and the token filter belong to whole trajectories, whose rows may lie on several ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from flashreinforce_molt.objective import BatchTotals, failure_token_filter, group_rows


@dataclass(frozen=True)
class Row:
    """One row of a batch: a whole trajectory, a segment of one, or padding without policy tokens."""

    trajectory: str
    tokens: int
    advantage: float
    failed: bool | None = None
    segment: int = 0
    """Place of the row in its trajectory, which decides ties of the token filter."""


@dataclass(frozen=True)
class Scan:
    """What a pass without gradient measured on one row: its drift, and its entropies if they decide anything."""

    drift_sum: float
    entropies: tuple[float, ...] = ()


@dataclass(frozen=True)
class BatchPlan:
    """The rows of this rank and what the whole batch says about them."""

    rows: tuple[Row, ...]
    totals: BatchTotals
    """Of the batch; the reward mean is 0, because the rows carry advantages that are centred already."""
    policy_tokens: Mapping[str, int]
    """T_i of every trajectory of the batch, over all its rows."""
    scattered: frozenset[str]
    """Trajectories that have policy tokens in more than one row."""
    admitted: Mapping[str, bool] = field(default_factory=dict)
    """Gate of the scattered trajectories, once decided."""
    kept: Mapping[int, Tensor] = field(default_factory=dict)
    """Own row -> [tokens] bool, the tokens that the filter keeps of it; rows of failed scattered trajectories."""

    @classmethod
    def of_batch(cls, ranks: Sequence[Sequence[Row]], rank: int) -> BatchPlan:
        """The plan of `rank`, from the rows of every data-parallel rank.

        Raises ValueError when rows of one trajectory contradict each other, or the batch has no policy token.
        """
        tokens: Counter[str] = Counter()
        first: dict[str, Row] = {}
        parts: Counter[str] = Counter()
        for row in (row for rows in ranks for row in rows):
            known = first.setdefault(row.trajectory, row)
            for name in ("advantage", "failed"):
                mine, other = getattr(row, name), getattr(known, name)
                if row.tokens and known.tokens and mine != other:
                    raise ValueError(
                        f"trajectory {row.trajectory}: its rows disagree on {name}: {other} and {mine}"
                    )
            if row.tokens and not known.tokens:
                first[row.trajectory] = row
            tokens[row.trajectory] += row.tokens
            parts[row.trajectory] += row.tokens > 0
        empty = [name for name, count in tokens.items() if count == 0]
        if empty or not tokens:
            raise ValueError(
                f"trajectories without policy tokens: {', '.join(empty) or 'the batch is empty'}"
            )
        return cls(
            rows=tuple(ranks[rank]),
            totals=BatchTotals(len(tokens), 0.0, sum(tokens.values())),
            policy_tokens=dict(tokens),
            scattered=frozenset(name for name, count in parts.items() if count > 1),
        )

    def decided(
        self,
        ranks: Sequence[Sequence[Row]],
        scans: Sequence[Sequence[Scan]],
        rank: int,
        *,
        delta: float,
        fraction: float,
    ) -> BatchPlan:
        """The plan with gate and filter of the scattered trajectories, from the scans of every rank's rows."""
        parts: dict[str, list[tuple[int, int, int, Row, Scan]]] = defaultdict(list)
        for owner, (rows, of_rows) in enumerate(zip(ranks, scans, strict=True)):
            for place, (row, scan) in enumerate(zip(rows, of_rows, strict=True)):
                if row.trajectory in self.scattered and row.tokens:
                    parts[row.trajectory].append((row.segment, owner, place, row, scan))
        admitted: dict[str, bool] = {}
        kept: dict[int, Tensor] = {}
        for name, members in parts.items():
            members.sort(key=lambda member: member[:3])
            drift = sum(scan.drift_sum for *_, scan in members) / self.policy_tokens[name]
            admitted[name] = drift <= delta
            if fraction < 1 and members[0][3].failed:
                keep = _kept_over_rows([scan.entropies for *_, scan in members], fraction)
                kept |= {
                    place: keep_of_row
                    for (_, owner, place, _, _), keep_of_row in zip(members, keep, strict=True)
                    if owner == rank
                }
        return BatchPlan(self.rows, self.totals, self.policy_tokens, self.scattered, admitted, kept)


def _kept_over_rows(entropies: Iterable[tuple[float, ...]], fraction: float) -> list[Tensor]:
    """The failure-token filter of one trajectory whose tokens lie in several rows, in order."""
    rows = [list(row) for row in entropies]
    flat = torch.tensor([[entropy for row in rows for entropy in row]])
    mask = torch.ones_like(flat, dtype=torch.bool)
    failed = torch.ones(1, dtype=torch.bool)
    keep = failure_token_filter(flat, failed, mask, group_rows(None, mask), fraction)[0]
    ends = list(accumulate(len(row) for row in rows))
    return [keep[end - len(row) : end] for row, end in zip(rows, ends, strict=True)]
