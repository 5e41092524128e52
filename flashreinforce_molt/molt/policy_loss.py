"""Our entry in Molt's registry of policy losses.

Inside Molt's own `PolicyLoss` it is Eq. 11 for trajectories of one row: Molt multiplies it by the detached ratio of
its importance correction, gates and averages. The learner replaces that `PolicyLoss` by ours (`native_loss`), which
also knows trajectories of several rows, the failure-token filter and the published ablations.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor

from flashreinforce_molt.molt.options import LOSS_MODE
from flashreinforce_molt.molt.registration import expect_parameters


def score_function(
    ratio: Tensor, advantages: Tensor, log_probs: Tensor, action_mask: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    """[B, T] -A_i log pi_it, and that nothing was clipped; the ratio of Molt's `force_on_policy` is 1."""
    return -advantages * log_probs, ratio.new_zeros(())


def extend(loss_module: ModuleType) -> None:
    """Register with Molt's `molt.models.loss`."""
    expect_parameters(loss_module.register_policy_loss, "name")
    expect_parameters(
        loss_module.PolicyLoss.forward, "self", "log_probs", "old_log_probs", "advantages", "action_mask"
    )
    loss_module.register_policy_loss(LOSS_MODE)(score_function)
