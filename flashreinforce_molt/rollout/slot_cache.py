"""A key-value cache with one row per slot, for rows that join and leave a running decode."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one attention layer, [slots, heads, max_context, head_dim]."""

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()
        self.owner = owner

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        def room(states: torch.Tensor) -> torch.Tensor:
            return states.new_zeros(
                self.owner.slots, states.shape[1], self.owner.max_context, states.shape[3]
            )

        self._keys, self._values = room(key_states), room(value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner = self.owner
        first, last, length = owner.first, owner.last, owner.length
        rows = torch.arange(first, last, device=key_states.device)[:, None]
        for states, new in ((self._keys, key_states), (self._values, value_states)):
            states[rows, :, owner.positions] = new.transpose(1, 2)
        return self._keys[first:last, :, :length], self._values[first:last, :, :length]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` positions of two rows."""
        for states in (self._keys, self._values):
            kept = states[a, :, :length].clone()
            states[a, :, :length] = states[b, :, :length]
            states[b, :, :length] = kept

    def reorder(self, order: torch.Tensor, length: int) -> None:
        """Put row `order[i]` at place i; `order` is a permutation of the first rows."""
        for states in (self._keys, self._values):
            states[: len(order), :, :length] = states[order, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.owner.length, 0

    def get_seq_length(self) -> int:
        return self.owner.length

    def get_max_length(self) -> int:
        return self.owner.max_context


class SlotCache(Cache):
    """Cache of a model whose forward pass works on the rows `first:last` at explicit positions.

    Before a forward pass the generator calls `aim`; the model's layers then write the new keys and values at
    `positions` [rows, queries] and attend over the first `length` positions of these rows. Padding inside a
    pass writes junk behind a row's end; the next tokens overwrite it before any mask lets it be seen.
    """

    def __init__(self, layers: int, slots: int, max_context: int) -> None:
        self.slots, self.max_context = slots, max_context
        self.first = self.last = self.length = 0
        self.positions = torch.zeros(0, 0, dtype=torch.long)
        self._slot_layers = [_SlotLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self._slot_layers))

    def aim(self, first: int, positions: torch.Tensor) -> torch.Tensor:
        """Set the window of the next pass; returns its attention mask [rows, 1, queries, length] (True: attend)."""
        self.first, self.last = first, first + positions.shape[0]
        self.positions = positions
        self.length = int(positions.max()) + 1
        return (torch.arange(self.length, device=positions.device) <= positions[..., None])[:, None]

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange two rows in every layer that has been used."""
        for layer in self._slot_layers:
            if layer.is_initialized:
                layer.swap(a, b, length)

    def reorder(self, order: list[int], length: int) -> None:
        """Permute the first rows, each with at most `length` positions, in every layer that has been used."""
        for layer in self._slot_layers:
            if layer.is_initialized:
                layer.reorder(torch.tensor(order), length)
