"""How a batch becomes the microbatches of every data-parallel rank."""

from __future__ import annotations

from dataclasses import fields, replace

from torch import Tensor

from flashreinforce_molt.trajectory import PaddedRows, TrajectoryBatch


def data_parallel_shards(
    batch: TrajectoryBatch, ranks: int, micro_batch_size: int | None
) -> list[list[TrajectoryBatch | None]]:
    """Microbatches of whole trajectories for each rank, alike in length; equally many everywhere.

    Long trajectories are dealt out first, one to each rank in turn, so that the ranks' work is alike. A rank that
    runs out gets fillers (None): the schedules and expert parallelism need the same number of steps on all ranks.
    """
    by_length = sorted(batch, key=lambda trajectory: (-max(trajectory.lengths), trajectory.trajectory_id))
    shards: list[list[TrajectoryBatch | None]] = []
    for rank in range(ranks):
        own = by_length[rank::ranks]
        shards.append([*TrajectoryBatch(own).split(micro_batch_size)] if own else [])
    count = max(map(len, shards))
    return [shard + [None] * (count - len(shard)) for shard in shards]


def row_shards(rows: PaddedRows, rows_per_microbatch: int, ranks: int) -> list[list[PaddedRows | None]]:
    """Microbatches of so many rows in their order, whatever trajectory they belong to; equally many everywhere."""
    total = len(rows.rewards)
    parts: list[PaddedRows | None] = [
        select_rows(rows, slice(start, start + rows_per_microbatch))
        for start in range(0, total, rows_per_microbatch)
    ]
    count = -(-len(parts) // ranks)
    parts += [None] * (count * ranks - len(parts))
    return [parts[rank * count : (rank + 1) * count] for rank in range(ranks)]


def select_rows(rows: PaddedRows, which: slice) -> PaddedRows:
    """Some of the rows, padded as before."""
    tensors = {f.name: value for f in fields(rows) if isinstance(value := getattr(rows, f.name), Tensor)}
    return replace(rows, **{name: tensor[which] for name, tensor in tensors.items()})
