"""What the loss refuses, by name. Only policy slots are looked at: junk elsewhere never matters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from flashreinforce_molt.objective.rows import TrajectoryRows
from flashreinforce_molt.objective.totals import BatchTotals
from flashreinforce_molt.shown import shown

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# An entropy is 0 or more; one of a near-certain token, as a difference of large logits, may round to less.
ENTROPY_ROUNDING = 1e-3
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
# Times the trajectories of a batch it must fit in the int64 of the denominators.
LONGEST_CONSTANT = 2**31 - 1


def validate_options(
    *,
    delta: float,
    negative_token_fraction: float,
    ratio_gradient: str,
    log_ratio_limit: float | None,
    aggregation: str,
    constant_length: int | None,
    gate: str,
    importance_correction: bool = True,
) -> None:
    """Refuse settings that have no meaning."""
    if not _is_number(delta) or not delta >= 0:
        raise ValueError(f"delta={shown(delta)} must be a number, 0 or more; infinity admits everything")
    if not _is_number(negative_token_fraction) or not 0 <= negative_token_fraction <= 1:
        raise ValueError(f"negative_token_fraction={shown(negative_token_fraction)} must be between 0 and 1")
    if log_ratio_limit is not None and not (
        _is_number(log_ratio_limit) and log_ratio_limit > 0 and math.isfinite(log_ratio_limit)
    ):
        raise ValueError(
            f"log_ratio_limit={shown(log_ratio_limit)} must be a positive number, or None for no clamp"
        )
    _validate_choice("ratio_gradient", ratio_gradient, ("detached", "through"))
    _validate_choice("aggregation", aggregation, ("sample-mean", "token-mean", "constant-length"))
    _validate_choice("gate", gate, ("sequence", "token", "none"))
    needed = constant_length is not None or aggregation == "constant-length"
    if needed and not (
        _is_number(constant_length)
        and isinstance(constant_length, Integral)
        and 0 < constant_length <= LONGEST_CONSTANT
    ):
        raise ValueError(
            f"constant_length={shown(constant_length)}: aggregation='constant-length' needs a positive number of "
            f"tokens, at most {LONGEST_CONSTANT:,}"
        )
    if not isinstance(importance_correction, bool):
        raise ValueError(f"importance_correction={shown(importance_correction)} must be True or False")


def _is_number(value: Any) -> bool:
    """True and False are numbers to Python, but no settings; a tensor cannot be compared with what no float holds."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def computing_dtype(log_probs: Tensor, behavior_log_probs: Tensor) -> torch.dtype:
    """What the loss computes in: the wider dtype of the two log-probs, float32 at least."""
    return torch.promote_types(torch.promote_types(log_probs.dtype, behavior_log_probs.dtype), torch.float32)


def _validate_choice(field: str, value: str, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{field}={shown(value)} is unknown; choose one of {', '.join(choices)}")


def validate_layout(
    log_probs: Tensor,
    behavior_log_probs: Tensor,
    rewards: Tensor,
    action_mask: Tensor,
    *,
    entropies: Tensor | None,
    failures: Tensor | None,
    trajectory_ids: Tensor | None,
    totals: BatchTotals | None,
    filtering: bool,
) -> None:
    """Refuse wrong types, shapes, dtypes and devices; looks at no value, so nothing synchronises."""
    if not isinstance(log_probs, Tensor) or log_probs.dim() != 2 or 0 in log_probs.shape:
        raise ValueError(f"log_probs must be a non-empty tensor [B, T], got {_describe(log_probs)}")
    tokens, rows = log_probs.shape, log_probs.shape[:1]
    required = [
        ("log_probs", log_probs, tokens, FLOATS),
        ("behavior_log_probs", behavior_log_probs, tokens, FLOATS),
        ("rewards", rewards, rows, FLOATS),
        ("action_mask", action_mask, tokens, (torch.bool,)),
    ]
    optional = [
        ("entropies", entropies, tokens, FLOATS),
        ("failures", failures, rows, (torch.bool,)),
        ("trajectory_ids", trajectory_ids, rows, INTEGERS),
    ]
    for field, value, shape, dtypes in required + [entry for entry in optional if entry[1] is not None]:
        if not isinstance(value, Tensor):
            raise ValueError(f"{field} must be a torch.Tensor, got {_describe(value)}")
        if value.shape != shape:
            raise ValueError(
                f"{field} has shape {list(value.shape)}, expected {list(shape)} to match log_probs"
            )
        if value.dtype not in dtypes:
            raise ValueError(f"{field} has dtype {value.dtype}, expected {' or '.join(map(str, dtypes))}")
        if value.device != log_probs.device:
            raise ValueError(f"{field} is on {value.device}, but log_probs on {log_probs.device}")
    for field, value in [entry[:2] for entry in (*required, *optional)]:
        if value is not None and (value.layout != torch.strided or value.is_meta):
            kind = "meta" if value.is_meta else value.layout
            raise ValueError(f"{field} is a {kind} tensor, expected an ordinary dense one that holds values")
    if filtering and entropies is None:
        raise ValueError(
            "entropies are missing: negative_token_fraction < 1 ranks tokens by full-categorical entropy"
        )
    if filtering and failures is None:
        raise ValueError(
            "failures are missing: negative_token_fraction < 1 needs an explicit label per trajectory"
        )
    if totals is not None and not isinstance(totals, BatchTotals):
        raise ValueError(f"totals must be BatchTotals, got {_describe(totals)}")


def _describe(value: Any) -> str:
    return (
        f"shape {list(value.shape)}"
        if isinstance(value, Tensor)
        else f"{type(value).__name__} {shown(value)}"
    )


@dataclass(frozen=True)
class _Fault:
    """Where a rule is broken: a mask over rows [B] or tokens [B, T], and the values to show."""

    field: str
    where: Tensor
    values: Tensor
    rule: str


def validate_values(
    log_probs: Tensor,
    behavior_log_probs: Tensor,
    rewards: Tensor,
    action_mask: Tensor,
    rows: TrajectoryRows,
    *,
    entropies: Tensor | None = None,
    failures: Tensor | None = None,
    trajectory_ids: Tensor | None = None,
    totals: BatchTotals | None = None,
) -> None:
    """Refuse values that would be trained on. One synchronisation; the offender is searched only after a failure."""
    dtype = computing_dtype(log_probs, behavior_log_probs)
    log_prob_rule = "a policy token's log-prob must be finite and at most 0"
    policy_tokens = rows.spread(rows.policy_tokens(action_mask))
    reward = rows.spread(rewards[rows.first])
    faults = [
        _Fault("log_probs", action_mask & ~_is_log_prob(log_probs), log_probs, log_prob_rule),
        _Fault(
            "behavior_log_probs",
            action_mask & ~_is_log_prob(behavior_log_probs),
            behavior_log_probs,
            log_prob_rule,
        ),
        _Fault("rewards", ~rewards.isfinite(), rewards, "a reward must be finite"),
        _Fault("rewards", ~rewards.to(dtype).isfinite(), rewards, f"{dtype} cannot hold it"),
        _Fault("rewards", rewards != reward, rewards, "rows of one trajectory must carry one reward"),
        _Fault("action_mask", policy_tokens == 0, policy_tokens, "a trajectory must have policy tokens"),
    ]
    if entropies is not None:
        not_finite = action_mask & ~entropies.isfinite()
        faults.append(_Fault("entropies", not_finite, entropies, "a policy token's entropy must be finite"))
        negative = action_mask & (entropies < -ENTROPY_ROUNDING)
        faults.append(_Fault("entropies", negative, entropies, "a policy token's entropy must be 0 or more"))
    if failures is not None:
        label = rows.spread(failures[rows.first])
        faults.append(
            _Fault("failures", failures != label, failures, "rows of one trajectory must carry one label")
        )
    if totals is not None:
        tokens = action_mask.sum().expand(1)
        excess = tokens > (totals.policy_tokens if len(rows) <= totals.trajectories else -1)
        faults.append(_Fault("totals", excess, tokens, f"{totals} counts less than this shard holds"))

    if torch.stack([fault.where.any() for fault in faults]).any():
        raise ValueError(_name_first(faults, trajectory_ids))


def _is_log_prob(values: Tensor) -> Tensor:
    """False for NaN, +-infinity and positive values; -0.0 is the log-prob of a certain token."""
    return (values <= 0) & (values > -math.inf)


def _name_first(faults: Sequence[_Fault], trajectory_ids: Tensor | None) -> str:
    fault = next(fault for fault in faults if fault.where.any())
    place = fault.where.nonzero()[0].tolist()
    return f"{fault.field}[{name_place(place, trajectory_ids)}] = {fault.values[tuple(place)].item()}: {fault.rule}"


def name_place(place: Sequence[int], trajectory_ids: Tensor | None) -> str:
    """Row, token and trajectory of a place in [B] or [B, T]; without ids a trajectory is named by its row."""
    row, *token = place
    trajectory = row if trajectory_ids is None else trajectory_ids[row].item()
    return ", ".join([f"row {row}", *(f"token {position}" for position in token), f"trajectory {trajectory}"])
