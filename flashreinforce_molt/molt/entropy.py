"""Entropies of chosen positions from logits that the learner holds anyway."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK_TOKENS = 256
"""Positions whose float32 log-probs exist at the same time: 156 MiB with a vocabulary of 152,000."""


@torch.no_grad()
def entropies_at(logits: Tensor, positions: Tensor, temperature: float) -> Tensor:
    """[B, S, V] logits, [B, S] bool positions -> [B, S] entropy of the full categorical, 0 elsewhere.

    Works on slices of CHUNK_TOKENS positions, so that no second copy of the logits comes to exist. The temperature
    must be the one that the log-probs are taken at.
    """
    entropies = torch.zeros(positions.shape, dtype=torch.float32, device=logits.device)
    row, column = positions.nonzero(as_tuple=True)
    for rows, columns in zip(row.split(CHUNK_TOKENS), column.split(CHUNK_TOKENS), strict=True):
        log_probs = torch.log_softmax(logits[rows, columns].float() / temperature, dim=-1)
        entropies[rows, columns] = torch.special.entr(log_probs.exp()).sum(dim=-1)
    return entropies
