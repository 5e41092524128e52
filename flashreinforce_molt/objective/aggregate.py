"""The denominators: how token terms become one number."""

from __future__ import annotations

import torch
from torch import Tensor

from flashreinforce_molt.objective.totals import BatchTotals


def token_denominators(
    policy_tokens: Tensor,
    totals: BatchTotals,
    aggregation: str = "sample-mean",
    constant_length: int | None = None,
) -> Tensor:
    """[n] T_i -> [n] what divides every token term of a trajectory, as exact integers.

    `sample-mean`: B T_i, every trajectory counts the same (Eq. 9). `token-mean`: sum_j T_j, every token counts the
    same. `constant-length`: B L. B and T are the original counts of the whole batch: neither the gate nor the
    filter nor a shard changes them.
    """
    if aggregation == "sample-mean":
        return policy_tokens * totals.trajectories
    if aggregation == "token-mean":
        return torch.full_like(policy_tokens, totals.policy_tokens)
    if aggregation == "constant-length" and constant_length is not None:
        return torch.full_like(policy_tokens, totals.trajectories * constant_length)
    raise ValueError(f"aggregation={aggregation!r} with constant_length={constant_length} is not defined")
