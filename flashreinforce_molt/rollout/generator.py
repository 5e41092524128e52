"""Continuous decoding: trajectories join, wait for their environment, return and leave between any two tokens.

Rows of the cache are kept in three zones: `[0, active)` decode, `[active, occupied)` wait for an environment
(their keys and values stay), the rest is free. Rows change zone by swapping, so that every forward pass works
on a contiguous view of the cache and copies nothing. A row whose turn has ended is moved only when the next step
finds that its environment has not answered yet.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from flashreinforce_molt.rollout.sampling import Sampling, draw, sampling_log_probs
from flashreinforce_molt.rollout.slot_attention import SLOT_ATTENTION, groups_of, keys_read
from flashreinforce_molt.rollout.slot_cache import SlotCache

ALWAYS_FED = 2
FED_TOGETHER = 16
"""Unread tokens of joining rows that `step` feeds, one a step, beside the rows that decode: so many of one row, or of
all rows that have more. A forward pass of their own, whose overhead is that of decoding ten rows, is for more.
"""


READ_IN_VAIN = 1.25
"""Rows are sorted by length again when they make attention read so much more than sorted ones would."""


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
        # A GPU reads all rows at once; and a model must hand the keyword down to its attention.
        self._reads_by_group = (
            model.device.type == "cpu" and model.config._attn_implementation == SLOT_ATTENTION
        )
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
        for generation in generations:
            if not self.holds(generation):
                if not self.free:
                    raise RuntimeError(f"no free slot for trajectory {generation.trajectory_id}")
                self._rows.append(generation)
            generation.turn_start, generation.end = len(generation.tokens), ""
            if (row := self._rows.index(generation)) >= self.active:
                self._swap(row, self.active)
                self.active += 1
        unread = [row for row in generations if len(row.tokens) - 1 - row.cached > ALWAYS_FED]
        if sum(len(row.tokens) - 1 - row.cached for row in unread) > FED_TOGETHER:
            self._prefill(unread)

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
        """Draw one token for every active trajectory that has read its context; returns those whose turn ended."""
        self._park()
        fed = self._rows[: self.active]
        if not fed:
            return []
        if self._reads_by_group:
            self._sort()
            fed = self._rows[: self.active]
        logits = self._forward(
            0, [[row.tokens[row.cached]] for row in fed], [generation.cached for generation in fed]
        )
        for generation in fed:
            generation.cached += 1
        rows = [generation for generation in fed if generation.cached == len(generation.tokens)]
        if len(rows) < len(fed):
            logits = logits[[row.cached == len(row.tokens) for row in fed]]
        if not rows:
            return []
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
            generation.tokens.append(token)
            generation.policy.append(True)
            generation.log_probs.append(log_prob)
            generation.versions.append(self.version)
            if token in self.stop_tokens:
                generation.end = "stop"
            elif len(generation.turn_tokens) >= generation.turn_budget:
                generation.end = "length"
        self.tokens_drawn += len(rows)
        return [generation for generation in rows if generation.end]

    def _park(self) -> None:
        for generation in [row for row in self._rows[: self.active] if row.end]:
            self.active -= 1
            self._swap(self._rows.index(generation), self.active)

    def _sort(self) -> None:
        lengths = [row.cached for row in self._rows[: self.active]]
        order = sorted(range(self.active), key=lambda row: -lengths[row])
        if keys_read(lengths) > READ_IN_VAIN * keys_read([lengths[row] for row in order]):
            self.cache.reorder(order, max(lengths))
            self._rows[: self.active] = [self._rows[row] for row in order]

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        length = max(self._rows[a].cached, self._rows[b].cached)
        if length:
            self.cache.swap(a, b, length)
        self._rows[a], self._rows[b] = self._rows[b], self._rows[a]

    def _prefill(self, generations: list[Generation]) -> None:
        """Cache all but the last token of these rows in one pass; `step` feeds the last one."""
        for i, generation in enumerate(generations, start=1):
            self._swap(self._rows.index(generation), self.active - i)
        first = self.active - len(generations)
        rows = self._rows[first : self.active]
        pending = [generation.tokens[generation.cached : -1] for generation in rows]
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
        if self._reads_by_group and width == 1:
            arguments["slot_groups"] = groups_of([start + 1 for start in starts])
        return self.model(**arguments).logits[:, -1]
