"""An independent FlashREINFORCE: plain loops over Python floats, written from the paper's equations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal

import torch


@dataclass
class Batch:
    """Inputs of the loss in float64, with several rows per trajectory."""

    log_probs: torch.Tensor
    behavior_log_probs: torch.Tensor
    rewards: torch.Tensor
    action_mask: torch.Tensor
    trajectory_ids: torch.Tensor
    failures: torch.Tensor
    entropies: torch.Tensor

    def inputs(self, *names: str) -> dict[str, torch.Tensor]:
        required = ("log_probs", "behavior_log_probs", "rewards", "action_mask", "trajectory_ids")
        return {name: getattr(self, name) for name in (*required, *names)}

    def rows(self, order: torch.Tensor) -> Batch:
        return Batch(**{name: value[order] for name, value in vars(self).items()})


def random_batch(seed: int, *, spread: float = 0.3) -> Batch:
    """1 to 6 trajectories in 1 to 3 rows each, rows shuffled, some rows without policy tokens, tied entropies."""
    draw = torch.Generator().manual_seed(seed)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=draw))

    owners = [trajectory for trajectory in range(integer(1, 6)) for _ in range(integer(1, 3))]
    owners = [owners[position] for position in torch.randperm(len(owners), generator=draw)]
    ids = torch.tensor([1000 - 7 * owner for owner in owners])
    rows, tokens = len(owners), integer(1, 9)
    mask = torch.rand(rows, tokens, generator=draw) < 0.6
    for owner in set(owners):
        of_owner = [row for row in range(rows) if owners[row] == owner]
        if not mask[of_owner].any():
            mask[of_owner[integer(0, len(of_owner) - 1)], integer(0, tokens - 1)] = True
    behavior = -2 * torch.rand(rows, tokens, generator=draw, dtype=torch.float64)
    noise = spread * torch.randn(rows, tokens, generator=draw, dtype=torch.float64)
    rewards = torch.randn(6, generator=draw, dtype=torch.float64)[owners]
    return Batch(
        log_probs=(behavior + noise).clamp(max=0),
        behavior_log_probs=behavior,
        rewards=rewards,
        action_mask=mask,
        trajectory_ids=ids,
        failures=(torch.rand(6, generator=draw) < 0.5)[owners],
        entropies=torch.randint(0, 4, (rows, tokens), generator=draw).double() / 2,
    )


@dataclass
class Expected:
    loss: float = 0.0
    gradient: list[list[float]] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    sequence_kl: list[float] = field(default_factory=list)
    admitted: list[bool] = field(default_factory=list)
    acceptance_rate: float = 0.0
    retained_tokens: int = 0
    clamped_tokens: int = 0
    max_ratio: float = 0.0
    top_token_share: float = 0.0


def drift_of_token(log_prob: float, behavior: float) -> float:
    p = min(max(math.exp(behavior), 1e-6), 1 - 1e-6)
    q = min(max(math.exp(log_prob), 1e-6), 1 - 1e-6)
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def oracle(
    batch: Batch,
    *,
    delta: float,
    gate: str = "sequence",
    aggregation: str = "sample-mean",
    constant_length: int | None = None,
    negative_token_fraction: float = 1.0,
    log_ratio_limit: float | None = None,
    ratio_gradient: str = "detached",
    importance_correction: bool = True,
) -> Expected:
    places: dict[int, list[tuple[int, int]]] = {}
    for row, trajectory in enumerate(batch.trajectory_ids.tolist()):
        slots = places.setdefault(trajectory, [])
        slots += [(row, token) for token in range(batch.log_probs.shape[1]) if batch.action_mask[row, token]]
    rows_of = {t: batch.trajectory_ids.tolist().index(t) for t in places}
    reward = {t: batch.rewards[row].item() for t, row in rows_of.items()}
    baseline = sum(reward.values()) / len(reward)
    total_tokens = sum(map(len, places.values()))

    expected = Expected(
        order=list(places), gradient=[[0.0] * batch.log_probs.shape[1] for _ in batch.rewards]
    )
    weights = []
    for trajectory, slots in places.items():
        advantage = reward[trajectory] - baseline
        drifts = {
            slot: drift_of_token(batch.log_probs[slot].item(), batch.behavior_log_probs[slot].item())
            for slot in slots
        }
        mean_drift = sum(drifts.values()) / len(slots)
        if not importance_correction or gate == "none":
            passing = slots
        elif gate == "sequence":
            passing = slots if mean_drift <= delta else []
        else:
            passing = [slot for slot in slots if drifts[slot] <= delta]
        kept = slots
        if negative_token_fraction < 1 and batch.failures[rows_of[trajectory]]:
            quota = math.ceil(Decimal(str(negative_token_fraction)) * len(slots))
            kept = sorted(slots, key=lambda slot: -batch.entropies[slot].item())[:quota]
        denominator = {
            "sample-mean": len(places) * len(slots),
            "token-mean": total_tokens,
            "constant-length": len(places) * (constant_length or 0),
        }[aggregation]

        for slot in set(passing) & set(kept):
            log_prob, log_ratio = batch.log_probs[slot].item(), 0.0
            clamped = False
            if importance_correction:
                log_ratio = log_prob - batch.behavior_log_probs[slot].item()
                if log_ratio_limit is not None and abs(log_ratio) > log_ratio_limit:
                    log_ratio, clamped = math.copysign(log_ratio_limit, log_ratio), True
            weight = advantage * math.exp(log_ratio) / denominator
            through = ratio_gradient == "through" and importance_correction
            expected.loss -= weight if through else weight * log_prob
            expected.gradient[slot[0]][slot[1]] = 0.0 if through and clamped else -weight
            expected.retained_tokens += 1
            expected.clamped_tokens += clamped
            expected.max_ratio = max(expected.max_ratio, math.exp(log_ratio))
            weights.append(abs(weight))
        expected.advantages.append(advantage)
        expected.sequence_kl.append(mean_drift)
        expected.admitted.append(bool(passing))
        expected.acceptance_rate += len(passing) / len(slots) / len(places)
    if sum(weights) > 0:
        expected.top_token_share = max(weights) / sum(weights)
    return expected
