"""The FlashREINFORCE loss of a fresh batch, or of one shard of it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from flashreinforce_molt.objective.aggregate import token_denominators
from flashreinforce_molt.objective.drift import bernoulli_kl, importance_ratio
from flashreinforce_molt.objective.failure_filter import failure_token_filter
from flashreinforce_molt.objective.gate import sequence_gate, token_gate
from flashreinforce_molt.objective.report import loss_stats
from flashreinforce_molt.objective.rewards import center_rewards
from flashreinforce_molt.objective.rows import group_rows
from flashreinforce_molt.objective.totals import BatchTotals
from flashreinforce_molt.objective.validate import (
    computing_dtype,
    name_place,
    validate_layout,
    validate_options,
    validate_values,
)


def flashreinforce_loss(
    log_probs: Tensor,
    behavior_log_probs: Tensor,
    rewards: Tensor,
    action_mask: Tensor,
    *,
    delta: float = 3e-3,
    negative_token_fraction: float = 1.0,
    entropies: Tensor | None = None,
    failures: Tensor | None = None,
    trajectory_ids: Tensor | None = None,
    ratio_gradient: str = "detached",
    log_ratio_limit: float | None = None,
    aggregation: str = "sample-mean",
    constant_length: int | None = None,
    gate: str = "sequence",
    importance_correction: bool = True,
    totals: BatchTotals | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """L = -(1/B) sum_i (m_i A_i / T_i) sum_t stopgrad(rho_it) log pi_it (Eq. 11), and detached statistics.

    Args:
        log_probs: [B, T] log pi_it of the sampled tokens under the learner; carries the gradient.
        behavior_log_probs: [B, T] log mu_it, recorded when the token was sampled.
        rewards: [B] R_i; rows of one trajectory repeat it.
        action_mask: [B, T] bool, True on policy tokens. What stands in any other slot never matters.
        delta: trust region of the gate on the mean drift D_i (Eq. 8).
        negative_token_fraction: share q of highest-entropy tokens kept in failed trajectories (Appendix C).
        entropies: [B, T] full-categorical entropy, needed when q < 1.
        failures: [B] bool, explicit failure labels, needed when q < 1.
        trajectory_ids: [B] int; rows with one id are ONE trajectory: one reward, T_i, drift, gate, count in B.
        ratio_gradient: "detached" (Eq. 11) or "through" (Appendix A): equal gradients where nothing is clamped.
        log_ratio_limit: clamp of the log-ratio; None raises FloatingPointError when a retained token overflows.
        aggregation: "sample-mean" (Eq. 9), or the ablations "token-mean" and "constant-length".
        constant_length: L of "constant-length"; not used otherwise.
        gate: "sequence" (Eq. 8), or the ablations "token" and "none".
        importance_correction: False replaces the ratio by 1 and switches the gate off (ablation).
        totals: counts of the whole batch when this call sees a shard of it; the shards' losses then add up.

    Computes in the wider dtype of the two log-probs, float32 at least.
    """
    validate_options(
        delta=delta,
        negative_token_fraction=negative_token_fraction,
        ratio_gradient=ratio_gradient,
        log_ratio_limit=log_ratio_limit,
        aggregation=aggregation,
        constant_length=constant_length,
        gate=gate,
        importance_correction=importance_correction,
    )
    # Any real number is a setting, a fraction too; a tensor is compared with floats only.
    delta = float(delta)
    log_ratio_limit = None if log_ratio_limit is None else float(log_ratio_limit)
    constant_length = None if constant_length is None else int(constant_length)
    filtering = negative_token_fraction < 1
    validate_layout(
        log_probs,
        behavior_log_probs,
        rewards,
        action_mask,
        entropies=entropies,
        failures=failures,
        trajectory_ids=trajectory_ids,
        totals=totals,
        filtering=filtering,
    )
    if not filtering:
        entropies = failures = None
    if not importance_correction:
        gate, ratio_gradient, log_ratio_limit = "none", "detached", None

    rows = group_rows(trajectory_ids, action_mask)
    validate_values(
        log_probs.detach(),
        behavior_log_probs.detach(),
        rewards.detach(),
        action_mask,
        rows,
        entropies=entropies,
        failures=failures,
        trajectory_ids=trajectory_ids,
        totals=totals,
    )

    dtype = computing_dtype(log_probs, behavior_log_probs)
    if log_ratio_limit is not None:
        log_ratio_limit = min(log_ratio_limit, torch.finfo(dtype).max)  # a larger one is none to this dtype
    policy = torch.where(action_mask, log_probs, 0).to(dtype)
    behavior = torch.where(action_mask, behavior_log_probs.detach(), 0).to(dtype)
    tokens = rows.policy_tokens(action_mask)
    if totals is None:
        totals = BatchTotals.of_rewards(rewards[rows.first].tolist(), int(tokens.sum()))

    advantages = center_rewards(rewards[rows.first], totals.reward_mean).to(dtype)
    drift = bernoulli_kl(policy, behavior)
    sequence_kl = rows.mean(drift, action_mask)
    admitted = action_mask
    if gate == "sequence":
        admitted = action_mask & rows.spread(sequence_gate(sequence_kl, delta))[:, None]
    elif gate == "token":
        admitted = action_mask & token_gate(drift, delta)
    retained = admitted
    if entropies is not None and failures is not None:
        retained = admitted & failure_token_filter(
            entropies, failures, action_mask, rows, negative_token_fraction
        )

    # Ratio, surrogate and weight exist on retained tokens only, so that no other token can overflow.
    reference = behavior if importance_correction else policy.detach()
    log_ratio = torch.where(retained, policy - reference, 0)
    ratio = importance_ratio(log_ratio, log_ratio_limit)
    surrogate = ratio.detach() * policy if ratio_gradient == "detached" else ratio

    denominators = token_denominators(tokens, totals, aggregation, constant_length)
    coefficients = rows.spread(advantages / denominators)[:, None]
    terms = torch.where(retained, coefficients * surrogate, 0)
    weights = torch.where(retained, coefficients * ratio.detach(), 0)
    loss = -terms.sum()

    overflow = ~terms.detach().isfinite() | (weights.abs() > torch.finfo(log_probs.dtype).max)
    unbounded = ~rows.spread(advantages).isfinite()
    if unbounded.any() | overflow.any() | ~loss.detach().isfinite():
        if unbounded.any():
            place = unbounded.nonzero()[0].tolist()
            raise FloatingPointError(
                f"rewards[{name_place(place, trajectory_ids)}] = {rewards[place[0]].item():.6g}, less the mean "
                f"{totals.reward_mean:.6g} of the batch, overflows {dtype}: rewards are far too large"
            )
        raise FloatingPointError(
            _name_overflow(
                overflow,
                log_ratio.detach(),
                policy.detach(),
                coefficients,
                log_probs.dtype,
                log_ratio_limit,
                trajectory_ids,
            )
        )
    stats = loss_stats(
        rows,
        action_mask,
        admitted,
        retained,
        advantages=advantages,
        sequence_kl=sequence_kl,
        log_ratio=(policy - behavior).detach(),
        ratio=ratio.detach(),
        weights=weights,
        log_ratio_limit=log_ratio_limit,
        trajectory_ids=trajectory_ids,
    )
    return loss, stats


def _name_overflow(
    overflow: Tensor,
    log_ratio: Tensor,
    policy: Tensor,
    coefficients: Tensor,
    dtype: torch.dtype,
    limit: float | None,
    trajectory_ids: Tensor | None,
) -> str:
    if not overflow.any():
        return f"the loss overflows {log_ratio.dtype} although every term is finite; rewards or ratios are far too large"
    place = overflow.nonzero()[0].tolist()
    where, row, spot = name_place(place, trajectory_ids), place[0], tuple(place)
    # The largest log-ratio with which this token's weight, in `dtype`, and its term, in the computing one, stay finite.
    share = abs(coefficients[row].item())
    headroom = min(
        _log(torch.finfo(dtype).max) - _log(share),
        _log(torch.finfo(policy.dtype).max) - _log(share) - _log(abs(policy[spot].item())),
    )
    if headroom <= 0:
        return (
            f"rewards[{where}]: advantage / denominator {share:.6g} of a retained token overflows {dtype} whatever "
            "its ratio: rewards are far too large"
        )
    remedy = "30 clamps it" if headroom >= 30 else f"{headroom * 0.99:.3g} clamps it, and smaller rewards do"
    return (
        f"log_probs[{where}]: log-ratio {log_ratio[spot].item():.6g} of a retained token overflows {dtype} "
        f"(log_ratio_limit={limit}); a limit such as {remedy}"
    )


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
