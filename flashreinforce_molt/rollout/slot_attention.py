"""Attention of a decode step whose rows differ much in length: no row reads far beyond its own end.

On a CPU a decode step is bound by reading keys and values. One call over all rows would read every row up to
the longest; groups of neighbouring rows, kept sorted by the generator, read little more than they need.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

SLOT_ATTENTION = "sdpa_by_slot_groups"
ROWS = 16
"""Rows of one group."""

Groups = list[tuple[int, int, int]]
"""First row, row after the last, and keys that the group reads."""


def groups_of(lengths: list[int]) -> Groups:
    """Neighbouring rows of these lengths, taken together."""
    return [
        (first, min(first + ROWS, len(lengths)), max(lengths[first : first + ROWS]))
        for first in range(0, len(lengths), ROWS)
    ]


def keys_read(lengths: list[int]) -> int:
    """Keys that all rows read together, one layer and head."""
    return sum((last - first) * length for first, last, length in groups_of(lengths))


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    slot_groups: Groups | None = None,
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' `sdpa`, group by group when `slot_groups` is given."""
    if slot_groups is None or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    parts = [
        sdpa_attention_forward(
            module,
            query[first:last],
            key[first:last, :, :length],
            value[first:last, :, :length],
            attention_mask[first:last, ..., :length],
            **settings,
        )[0]
        for first, last, length in slot_groups
    ]
    return torch.cat(parts), None


AttentionInterface.register(SLOT_ATTENTION, slot_attention)
AttentionMaskInterface.register(SLOT_ATTENTION, sdpa_mask)
