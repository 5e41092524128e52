"""Inputs of `flashreinforce_loss`, held against plain loops over Python floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from flashreinforce_molt import BatchTotals, flashreinforce_loss
from fuzzing.case import ANSWER, REFUSED, STRANGE_VALUES, attempt, demand

Inputs = dict[str, Any]
TENSORS = ("log_probs", "behavior_log_probs", "rewards", "action_mask")
BAD_OPTIONS = {
    "delta": (-1e-9, math.nan, None, "3e-3", True, 10**400, [1], 1j, np.array([1.0, 2.0])),
    "negative_token_fraction": (-0.1, 1.01, math.nan, None, "half", True, 10**400),
    "log_ratio_limit": (0, -1.0, math.inf, math.nan, "30", True, 10**400, [30]),
    "ratio_gradient": ("both", None, 1, ["detached"], b"through", np.array(["detached", "x"])),
    "aggregation": ("mean", None, torch.zeros(2), ("sample-mean",), "constant-length"),
    "gate": ("row", None, 0, {"sequence"}, "Sequence"),
    "importance_correction": ("no", 0, 1, None, np.bool_(True)),
    "constant_length": (0, -1, 1.5, True, 10**400, 2**63, "8", math.nan),
    "totals": (3, "x", [], {"trajectories": 1}),
}


def case(rng: Random, folder: Path) -> str:
    """One call of the loss."""
    inputs = _sound(rng)
    if rng.random() < 0.3:
        outcome, result = attempt(lambda: flashreinforce_loss(**inputs), (), must=ANSWER)
        _judge(inputs, result)
        return outcome
    must = rng.choice(_FAULTS)(inputs, rng)
    outcome, result = attempt(
        lambda: flashreinforce_loss(**_built(inputs)), (ValueError, FloatingPointError), must=must
    )
    if outcome == ANSWER:
        loss, stats = result
        demand(bool(loss.isfinite()) and 0 <= stats["acceptance_rate"] <= 1, f"loss {loss}, {stats}")
    return outcome


def _sound(rng: Random) -> Inputs:
    rows, tokens = rng.randint(1, 4), rng.randint(1, 5)
    dtype = rng.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
    owners = [rng.randrange(3) for _ in range(rows)] if rng.random() < 0.5 else list(range(rows))
    mask = [[rng.random() < 0.6 for _ in range(tokens)] for _ in range(rows)]
    for owner in set(owners):
        mask[owners.index(owner)][rng.randrange(tokens)] = True
    behavior = [[-3 * rng.random() for _ in range(tokens)] for _ in range(rows)]
    spread = rng.choice([0.0, 0.01, 1.0])
    policy = [[min(0.0, value + spread * (rng.random() - 0.5)) for value in row] for row in behavior]
    junk = (math.nan, math.inf, -math.inf, 1e3)
    for values in (behavior, policy):
        for row, flags in zip(values, mask, strict=True):
            row[:] = [value if flag else rng.choice(junk) for value, flag in zip(row, flags, strict=True)]
    prize = {owner: rng.choice([0.0, 1.0, -2.5, rng.random()]) for owner in owners}
    inputs: Inputs = {
        "log_probs": torch.tensor(policy, dtype=dtype),
        "behavior_log_probs": torch.tensor(behavior, dtype=dtype),
        "rewards": torch.tensor([prize[owner] for owner in owners], dtype=torch.float32),
        "action_mask": torch.tensor(mask),
        "delta": rng.choice([0, 3e-3, math.inf, Fraction(1, 300), np.float32(0.01)]),
        "ratio_gradient": rng.choice(["detached", "through"]),
        "aggregation": rng.choice(["sample-mean", "token-mean", "constant-length"]),
        "gate": rng.choice(["sequence", "token", "none"]),
        "importance_correction": rng.random() < 0.8,
        "log_ratio_limit": rng.choice([None, 30, Fraction(1, 2)]),
        "constant_length": 8,
    }
    if owners != list(range(rows)):
        inputs["trajectory_ids"] = torch.tensor(owners, dtype=rng.choice([torch.int64, torch.uint8]))
    return inputs


def _judge(inputs: Inputs, result: Any) -> None:
    """Compare with the equations, unless a token stands so near the gate that rounding decides."""
    loss, stats = result
    mask = inputs["action_mask"].tolist()
    owners = inputs["trajectory_ids"].tolist() if "trajectory_ids" in inputs else list(range(len(mask)))
    order = list(dict.fromkeys(owners))
    pi, mu = inputs["log_probs"].tolist(), inputs["behavior_log_probs"].tolist()
    tokens = {owner: [] for owner in order}
    for row, owner in enumerate(owners):
        tokens[owner] += [(pi[row][t], mu[row][t]) for t in range(len(mask[row])) if mask[row][t]]
    rewards = {owner: inputs["rewards"].tolist()[owners.index(owner)] for owner in order}
    baseline = math.fsum(rewards.values()) / len(order)
    corrected, delta, total, admitted = inputs["importance_correction"], float(inputs["delta"]), 0.0, 0.0
    gate = inputs["gate"] if corrected else "none"
    limit = math.inf if inputs["log_ratio_limit"] is None else float(inputs["log_ratio_limit"])
    for owner in order:
        drifts = [_drift(*pair) for pair in tokens[owner]]
        tested = [math.fsum(drifts) / len(drifts)] if gate == "sequence" else drifts
        if gate != "none" and any(abs(drift - delta) < 1e-5 for drift in tested):
            return
        through = [gate == "none" or drift <= delta for drift in tested] * (
            len(drifts) if gate == "sequence" else 1
        )
        admitted += sum(through) / len(through)
        size = {
            "sample-mean": len(order) * len(drifts),
            "token-mean": sum(map(len, tokens.values())),
            "constant-length": len(order) * 8,
        }[inputs["aggregation"]]
        for (now, then), kept in zip(tokens[owner], through, strict=True):
            ratio = math.exp(max(-limit, min(limit, now - then))) if corrected else 1.0
            surrogate = ratio if corrected and inputs["ratio_gradient"] == "through" else ratio * now
            total -= kept * (rewards[owner] - baseline) / size * surrogate
    demand(abs(loss.item() - total) < 1e-4, f"loss {loss.item()}, expected {total}")
    demand(abs(stats["acceptance_rate"] - admitted / len(order)) < 1e-6, f"{stats}, {admitted} are admitted")


def _drift(now: float, then: float) -> float:
    q, p = (min(max(math.exp(value), 1e-6), 1 - 1e-6) for value in (now, then))
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def _built(inputs: Inputs) -> Inputs:
    """Totals are made where they are used, so that their own refusal counts as the call's."""
    return {name: value() if isinstance(value, _Late) else value for name, value in inputs.items()}


class _Late:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __call__(self) -> Any:
        return self.make()


def _other_type(inputs: Inputs, rng: Random) -> str:
    name = rng.choice(TENSORS)
    tensor = inputs[name]
    # NumPy knows no bfloat16, and a list says as much.
    inputs[name] = rng.choice([tensor.tolist(), tensor.double().numpy(), *STRANGE_VALUES])
    return REFUSED


def _other_shape(inputs: Inputs, rng: Random) -> str:
    name = rng.choice(TENSORS)
    tensor = inputs[name]
    inputs[name] = rng.choice(
        [tensor[None], tensor.flatten()[:0], tensor.unsqueeze(-1), tensor.sum(), tensor[:0]]
    )
    return REFUSED


def _other_dtype(inputs: Inputs, rng: Random) -> str:
    name = rng.choice([*TENSORS, "trajectory_ids"])
    tensor = inputs.get(name, torch.zeros(len(inputs["rewards"])))
    dtypes = [torch.complex64, torch.int64 if name != "trajectory_ids" else torch.float32, torch.float8_e5m2]
    inputs[name] = torch.nan_to_num(tensor.float()).to(rng.choice(dtypes))
    return REFUSED


def _other_kind(inputs: Inputs, rng: Random) -> str:
    name = rng.choice(TENSORS)
    inputs[name] = rng.choice([inputs[name].to("meta"), inputs[name].to_sparse()])
    return REFUSED


def _bad_value(inputs: Inputs, rng: Random) -> str:
    name = rng.choice(["log_probs", "behavior_log_probs", "rewards"])
    places = inputs["action_mask"].nonzero().tolist() if name != "rewards" else [[0]]
    bad = [math.nan, math.inf, -math.inf] if name == "rewards" else [math.nan, math.inf, -math.inf, 0.5]
    inputs[name][tuple(rng.choice(places))] = rng.choice(bad)
    return REFUSED


def _no_policy_token(inputs: Inputs, rng: Random) -> str:
    owners = inputs.get("trajectory_ids", torch.arange(len(inputs["rewards"])))
    inputs["action_mask"][owners == owners[rng.randrange(len(owners))]] = False
    return REFUSED


def _huge(inputs: Inputs, rng: Random) -> None:
    name = rng.choice(["log_probs", "behavior_log_probs", "rewards"])
    inputs[name] = torch.where(
        inputs[name].isfinite(), inputs[name].double() * rng.choice([1e3, 1e37, 1e300]), 0.0
    )
    inputs[name] = inputs[name].to(rng.choice([torch.float32, torch.float64]))
    inputs["log_ratio_limit"] = rng.choice([None, 1e-300, 1e300, 80])


def _bad_option(inputs: Inputs, rng: Random) -> str:
    name = rng.choice([*BAD_OPTIONS])
    inputs[name] = rng.choice(BAD_OPTIONS[name])
    if name == "aggregation":
        inputs["constant_length"] = None
    return REFUSED


def _filter_without_inputs(inputs: Inputs, rng: Random) -> str:
    shape = inputs["log_probs"].shape
    inputs["negative_token_fraction"] = rng.choice([0, 0.5, Fraction(1, 3)])
    inputs["entropies"] = torch.full(shape, rng.choice([math.nan, -1.0, math.inf]))
    inputs["failures"] = rng.choice([None, torch.zeros(shape[0], dtype=torch.bool), torch.zeros(shape[0])])
    return REFUSED


def _strange_totals(inputs: Inputs, rng: Random) -> None:
    numbers = (0, 1, 3, 7, 2**31, 2**62, 10**400, -1, 1.5, math.nan, 1e308, "3", None, True)
    counts = [rng.choice(numbers) for _ in range(3)]
    inputs["totals"] = _Late(lambda: BatchTotals(*counts))


_FAULTS: tuple[Callable[[Inputs, Random], str | None], ...] = (
    _other_type,
    _other_shape,
    _other_dtype,
    _other_kind,
    _bad_value,
    _no_policy_token,
    _huge,
    _bad_option,
    _bad_option,
    _filter_without_inputs,
    _strange_totals,
)
