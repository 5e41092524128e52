"""Continuous decoding: trajectories join, wait for their environment, return and leave between any two tokens.

Rows of the cache are kept in three zones: `[0, active)` decode, `[active, occupied)` wait for an environment
(their keys and values stay), the rest is free. Rows change zone by swapping, so that every forward pass works
on a contiguous view of the cache and copies nothing.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from flashreinforce_molt.rollout.sampling import Sampling, draw, sampling_log_probs
from flashreinforce_molt.rollout.slot_cache import SlotCache


class NonFiniteLogitsError(FloatingPointError):
    """The model produced NaN or infinite logits while sampling."""


@dataclass(eq=False)
class Generation:
    """One trajectory while it is generated. `policy` marks the tokens the model chose."""

    trajectory_id: int
    tokens: list[int]
    uniforms: np.ndarray
    policy: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turn_budget: int = 0
    cached: int = 0
    """Tokens whose keys and values are in the cache."""
    turn_start: int = 0
    end: str = ""
    """Why the current turn ended: `stop` or `length`; empty while it runs."""

    def __post_init__(self) -> None:
        self.policy = [False] * len(self.tokens)

    def observe(self, tokens: list[int]) -> None:
        """Append tokens that the environment wrote."""
        self.tokens += tokens
        self.policy += [False] * len(tokens)

    @property
    def turn_tokens(self) -> list[int]:
        """Tokens of the turn that has just ended, the end token included."""
        return self.tokens[self.turn_start :]


class SlotGenerator:
    """Decodes up to `slots` trajectories at once on an unmodified transformers causal language model."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int,
        max_context: int,
        stop_tokens: frozenset[int],
        sampling: Sampling,
    ) -> None:
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ValueError(
                f"model.id: {type(model).__name__} has layers of kind {sorted(kinds)}; the local engine decodes "
                "full attention only. Train this model with --engine molt"
            )
        self.model, self.sampling, self.stop_tokens = model, sampling, stop_tokens
        self.slots, self.max_context = slots, max_context
        self.version = 0
        self.tokens_drawn = 0
        self.cache = SlotCache(model.config.num_hidden_layers, slots, max_context)
        self._rows: list[Generation] = []
        self.active = 0
        # transformers 5.2x renamed the argument; both names are in the supported range.
        names = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    @property
    def free(self) -> int:
        """Slots that hold no trajectory."""
        return self.slots - len(self._rows)

    def holds(self, generation: Generation) -> bool:
        """Whether the trajectory occupies a slot."""
        return generation in self._rows

    @torch.inference_mode()
    def join(self, generations: list[Generation]) -> None:
        """Start or go on decoding: new trajectories take a free slot, waiting ones return from theirs."""
        if not generations:
            return
        first = self.active
        for generation in generations:
            if not self.holds(generation):
                if not self.free:
                    raise RuntimeError(f"no free slot for trajectory {generation.trajectory_id}")
                self._rows.append(generation)
            generation.turn_start, generation.end = len(generation.tokens), ""
            self._swap(self._rows.index(generation), self.active)
            self.active += 1
        self._prefill(first)

    @torch.inference_mode()
    def leave(self, generation: Generation) -> None:
        """Free the slot of a trajectory, wherever it is."""
        row = self._rows.index(generation)
        if row < self.active:
            self.active -= 1
            self._swap(row, self.active)
            row = self.active
        self._swap(row, len(self._rows) - 1)
        self._rows.pop()

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Draw one token for every active trajectory; returns those whose turn ended, now waiting."""
        rows = self._rows[: self.active]
        if not rows:
            return []
        inputs = [[generation.tokens[-1]] for generation in rows]
        logits = self._forward(0, inputs, [generation.cached for generation in rows])
        log_probs = sampling_log_probs(logits, self.sampling, [generation.tokens for generation in rows])
        if self.sampling.greedy:
            drawn = log_probs.argmax(-1)
        else:
            numbers = [generation.uniforms[len(generation.log_probs)] for generation in rows]
            drawn = draw(log_probs, torch.tensor(numbers, dtype=torch.float64, device=log_probs.device))
        chosen = log_probs.gather(-1, drawn[:, None])[:, 0].tolist()
        for generation, token, log_prob in zip(rows, drawn.tolist(), chosen, strict=True):
            if not log_prob > float("-inf"):
                raise NonFiniteLogitsError(
                    f"trajectory {generation.trajectory_id}, token {len(generation.tokens)}: the log-prob of the "
                    f"sampled token is {log_prob} under policy version {self.version}"
                )
            generation.cached += 1
            generation.tokens.append(token)
            generation.policy.append(True)
            generation.log_probs.append(log_prob)
            generation.versions.append(self.version)
            if token in self.stop_tokens:
                generation.end = "stop"
            elif len(generation.turn_tokens) >= generation.turn_budget:
                generation.end = "length"
        self.tokens_drawn += len(rows)
        ended = [generation for generation in rows if generation.end]
        for generation in ended:
            self.active -= 1
            self._swap(self._rows.index(generation), self.active)
        return ended

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        length = max(self._rows[a].cached, self._rows[b].cached)
        if length:
            self.cache.swap(a, b, length)
        self._rows[a], self._rows[b] = self._rows[b], self._rows[a]

    def _prefill(self, first: int) -> None:
        """Cache all but the last token of the rows `first:active`; `step` feeds the last one."""
        rows = self._rows[first : self.active]
        pending = [generation.tokens[generation.cached : -1] for generation in rows]
        if any(pending):
            self._forward(first, pending, [generation.cached for generation in rows])
        for generation, tokens in zip(rows, pending, strict=True):
            generation.cached += len(tokens)

    def _forward(self, first: int, inputs: list[list[int]], starts: list[int]) -> torch.Tensor:
        """Logits [rows, V] of the last column of right-padded `inputs`, which begin at positions `starts`."""
        device = self.model.device
        width = max(len(tokens) for tokens in inputs)
        padded = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in inputs], device=device)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        positions = positions.clamp(max=self.max_context - 1)
        arguments: dict[str, Any] = {
            "input_ids": padded,
            "attention_mask": self.cache.aim(first, positions),
            "position_ids": positions,
            self._cache_argument: self.cache,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        return self.model(**arguments).logits[:, -1]
