"""The optional failure-token filter (Appendix C): failed trajectories teach through their uncertain tokens only."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from flashreinforce_molt.objective.rows import TrajectoryRows


def kept_tokens(policy_tokens: int, fraction: float) -> int:
    """ceil(q * T_i), exact for the decimal that q is written as: 0.28 of 25 tokens are 7, not 8."""
    share = Fraction(repr(float(fraction))) * policy_tokens
    return -(-share.numerator // share.denominator)


@torch.no_grad()
def failure_token_filter(
    entropies: Tensor, failures: Tensor, action_mask: Tensor, rows: TrajectoryRows, fraction: float
) -> Tensor:
    """[B, T] bool: the policy tokens that keep their weight; T_i and B stay what they were.

    A trajectory labelled as failed (`failures` [B], never inferred from the sign of its advantage) keeps the
    ceil(q * T_i) tokens of highest entropy over all its rows, ties in token order; any other keeps all.
    """
    owner = rows.index[:, None].expand_as(action_mask)[action_mask]
    by_entropy = torch.sort(entropies[action_mask], descending=True, stable=True).indices
    ranked = by_entropy[torch.sort(owner[by_entropy], stable=True).indices]

    counts = rows.policy_tokens(action_mask)
    quota = counts.new_tensor([kept_tokens(count, fraction) for count in counts.tolist()])
    quota = torch.where(failures[rows.first], quota, counts)
    place = torch.arange(ranked.numel(), device=ranked.device) - (counts.cumsum(0) - counts)[owner[ranked]]

    kept = torch.empty_like(owner, dtype=torch.bool)
    kept[ranked] = place < quota[owner[ranked]]
    return torch.zeros_like(action_mask).masked_scatter(action_mask, kept)
