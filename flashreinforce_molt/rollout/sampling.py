"""Drawing tokens, and the log-probability of the distribution they were really drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the defaults sample the model's whole distribution."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    greedy: bool = False


def uniforms(seed: int, trajectory_id: int, count: int) -> np.ndarray:
    """The `count` uniform numbers in (0, 1) that one trajectory consumes, one per policy token.

    They depend on the seed and the trajectory alone, so a sample does not depend on which other trajectories
    happened to share its batch. 32 bits each: never so close to 1 that rounding could reach a dead tail.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed, trajectory_id]))
    return (generator.integers(0, 2**32, count, dtype=np.uint64).astype(np.float64) + 0.5) / 2.0**32


def sampling_log_probs(logits: torch.Tensor, sampling: Sampling, seen: list[list[int]]) -> torch.Tensor:
    """Log-probabilities [N, V] in float32 of the distribution that is sampled, after every transformation.

    `seen` holds each row's tokens so far; only a repetition penalty reads them.
    """
    logits = logits.float()
    if sampling.repetition_penalty != 1.0:
        logits = logits.clone()
        for row, tokens in enumerate(seen):
            index = torch.tensor(sorted(set(tokens)), device=logits.device)
            scores = logits[row, index]
            penalty = sampling.repetition_penalty
            logits[row, index] = torch.where(scores > 0, scores / penalty, scores * penalty)
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    if sampling.top_k:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    log_probs = torch.log_softmax(logits, dim=-1)
    if sampling.min_p:
        floor = log_probs.amax(-1, keepdim=True) + float(np.log(sampling.min_p))
        log_probs = torch.log_softmax(log_probs.masked_fill(log_probs < floor, float("-inf")), dim=-1)
    if sampling.top_p < 1.0:
        ordered, order = log_probs.sort(dim=-1, descending=True)
        mass_before = ordered.exp().cumsum(-1) - ordered.exp()
        outside = torch.zeros_like(mass_before, dtype=torch.bool).scatter(
            -1, order, mass_before >= sampling.top_p
        )
        log_probs = torch.log_softmax(log_probs.masked_fill(outside, float("-inf")), dim=-1)
    return log_probs


def draw(log_probs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Inverse-CDF draw: tokens [N] for log-probs [N, V] and uniform numbers [N] in float64.

    A row of NaN yields the last token; the caller sees its log-prob and stops.
    """
    cumulative = log_probs.double().exp().cumsum(-1)
    target = (numbers * cumulative[:, -1])[:, None]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return tokens.clamp(max=log_probs.shape[-1] - 1)
