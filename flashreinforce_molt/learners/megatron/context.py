"""Which slots of a row each context-parallel rank holds, and how the row is put together again."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def context_slots(length: int, ranks: int, rank: int) -> Tensor:
    """Slots [length / ranks] of a rank, in its order: chunks `rank` and `2 ranks - 1 - rank` of 2 `ranks`.

    Megatron's own cut: under a causal mask later chunks cost more, so that a pair of one early and one late chunk
    gives every rank the same work. One rank holds the row as it is.
    """
    slots = torch.arange(length)
    if ranks == 1:
        return slots
    if length % (2 * ranks):
        raise ValueError(
            f"{length} slots cannot be cut into {2 * ranks} equal chunks for {ranks} context-parallel ranks"
        )
    chunks = slots.view(2 * ranks, -1)
    return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


def gather_slots(local: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[..., length / ranks] of this rank -> [..., length] in token order; only this rank's slots carry gradient.

    The values of the other ranks enter as constants: each rank's backward yields the gradient of its own slots,
    and over the group they add up to that of the whole row.
    """
    if group.size() == 1:
        return local
    mine = local.detach().contiguous()
    parts = list(mine.new_empty(group.size(), *mine.shape))
    dist.all_gather(parts, mine, group=group)
    length = local.shape[-1] * group.size()
    slots = [context_slots(length, group.size(), rank).to(local.device) for rank in range(group.size())]
    row = local.new_empty(*local.shape[:-1], length)
    for of_rank, part in zip(slots, parts, strict=True):
        row[..., of_rank] = part
    return row.index_copy(-1, slots[group.rank()], local)
