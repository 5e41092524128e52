"""Weights from the learner to the rollout workers, through shared memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


class WeightStore:
    """Two shared buffers, written in turn, and a header that says which one is complete.

    A reader copies the newest buffer and then looks whether the learner began to write into it meanwhile (which
    takes two publications during one copy); if so it reads again. Hence no reader ever keeps torn weights, and
    the learner never waits for a reader.
    """

    _NEWEST, _VERSION = 0, 1
    _BEING_WRITTEN = -1

    def __init__(self, model: nn.Module) -> None:
        dtypes = {tensor.dtype for tensor in _state(model)}
        if len(dtypes) != 1:
            raise ValueError(f"the weight store holds one dtype, the model has {sorted(map(str, dtypes))}")
        size = sum(tensor.numel() for tensor in _state(model))
        dtype = dtypes.pop()
        self._buffers = [torch.zeros(size, dtype=dtype).share_memory_() for _ in range(2)]
        self._header = torch.tensor([0, self._BEING_WRITTEN, self._BEING_WRITTEN]).share_memory_()

    @property
    def version(self) -> int:
        """Newest complete version."""
        return int(self._header[self._VERSION + int(self._header[self._NEWEST])])

    def publish(self, model: nn.Module, version: int) -> None:
        """Write the learner's weights under a version number; the only writer is the learner."""
        target = 1 - int(self._header[self._NEWEST])
        self._header[self._VERSION + target] = self._BEING_WRITTEN
        with torch.no_grad():
            for tensor, stored in _paired(model, self._buffers[target]):
                stored.copy_(tensor)
        self._header[self._VERSION + target] = version
        self._header[self._NEWEST] = target

    def read_into(self, model: nn.Module) -> int:
        """Copy the newest weights into `model`; returns their version."""
        while True:
            source = int(self._header[self._NEWEST])
            version = int(self._header[self._VERSION + source])
            if version == self._BEING_WRITTEN:
                continue
            with torch.no_grad():
                for tensor, stored in _paired(model, self._buffers[source]):
                    tensor.copy_(stored)
            if int(self._header[self._VERSION + source]) == version:
                return version


def _state(model: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, tied ones once, and the buffers that belong to the saved state."""
    saved = set(model.state_dict(keep_vars=True))
    yield from model.parameters()
    for name, buffer in model.named_buffers():
        if name in saved:
            yield buffer


def _paired(model: nn.Module, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    offset = 0
    for tensor in _state(model):
        yield tensor, flat[offset : offset + tensor.numel()].view_as(tensor)
        offset += tensor.numel()
