"""Tensor views of trajectories: padded rows, or all rows packed into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from flashreinforce_molt.trajectory.record import Row, Trajectory

View = TypeVar("View", bound="RowLabels")


@dataclass(frozen=True, kw_only=True)
class RowLabels:
    """What each of R rows knows of its trajectory."""

    rewards: Tensor
    """[R] float32."""
    failures: Tensor | None
    """[R] bool, or None when no trajectory has a label."""
    trajectory_ids: Tensor
    """[R] int64."""

    def to(self: View, device: torch.device | str) -> View:
        """The same view on another device."""
        tensors = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        return replace(
            self, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        )

    def _objective_inputs(self, behavior_log_probs: Tensor, action_mask: Tensor) -> dict[str, Any]:
        return {
            "behavior_log_probs": behavior_log_probs,
            "rewards": self.rewards,
            "action_mask": action_mask,
            "failures": self.failures,
            "trajectory_ids": self.trajectory_ids,
        }


@dataclass(frozen=True, kw_only=True)
class PaddedRows(RowLabels):
    """R rows padded to T tokens; slot t of an aligned tensor belongs to token t + 1, which logits t predict."""

    input_ids: Tensor
    """[R, T] int64."""
    attention_mask: Tensor
    """[R, T] int64: 1 on tokens, 0 on padding."""
    position_ids: Tensor
    """[R, T] int64: from 0 in each row, 0 on padding."""
    action_mask: Tensor
    """[R, T-1] bool."""
    behavior_log_probs: Tensor
    """[R, T-1] float32, 0 where nothing was sampled."""

    @property
    def targets(self) -> Tensor:
        """[R, T-1] the token that each slot is about."""
        return self.input_ids[:, 1:]

    def objective_inputs(self) -> dict[str, Any]:
        """Keyword arguments of `flashreinforce_loss` for log_probs [R, T-1] of `targets`."""
        return self._objective_inputs(self.behavior_log_probs, self.action_mask)

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], side: str, pad_token_id: int) -> PaddedRows:
        """Pad on the `side` "right" or "left"."""
        if side not in ("right", "left"):
            raise ValueError(f"side={side!r} is unknown; choose right or left")
        rows = [row for trajectory in trajectories for row in trajectory.rows()]
        longest = max(row.tokens.size for row in rows)

        def pad(values_of: Callable[[Row], np.ndarray], fill: int | float | bool, dtype: Any) -> Tensor:
            table = np.full((len(rows), longest), fill, dtype=dtype)
            for line, row in zip(table, rows, strict=True):
                values = values_of(row)
                line[: values.size] = values
                if side == "left":
                    line[:] = np.roll(line, longest - values.size)
            return torch.from_numpy(table)

        return cls(
            **_labels(trajectories),
            input_ids=pad(lambda row: row.tokens, pad_token_id, np.int64),
            attention_mask=pad(lambda row: np.ones_like(row.tokens), 0, np.int64),
            position_ids=pad(lambda row: np.arange(row.tokens.size), 0, np.int64),
            action_mask=pad(lambda row: row.action_mask, False, np.bool_)[:, 1:],
            behavior_log_probs=pad(_per_token_log_probs, 0, np.float32)[:, 1:],
        )


@dataclass(frozen=True, kw_only=True)
class PackedRows(RowLabels):
    """R rows, S tokens in all, as one tensor row; slot t of an aligned tensor belongs to token t + 1.

    The slot that spans a boundary belongs to the first token of a row and so is never a policy slot.
    """

    input_ids: Tensor
    """[1, S] int64."""
    position_ids: Tensor
    """[1, S] int64: from 0 in each row."""
    cu_seqlens: Tensor
    """[R+1] int32: where each row starts, and S."""
    max_seqlen: int
    action_mask: Tensor
    """[1, S-1] bool."""
    behavior_log_probs: Tensor
    """[1, S-1] float32, 0 where nothing was sampled."""

    @property
    def targets(self) -> Tensor:
        """[1, S-1] the token that each slot is about."""
        return self.input_ids[:, 1:]

    def unpack(self, aligned: Tensor) -> Tensor:
        """[1, S-1] -> [R, max_seqlen-1]: aligned values by row, right padded with zeros; differentiable."""
        rows, length = len(self.rewards), self.max_seqlen - 1
        lengths = self.cu_seqlens.diff()
        row = torch.repeat_interleave(torch.arange(rows, device=lengths.device), lengths)[1:]
        place = self.position_ids[0, 1:] - 1
        inside = place >= 0
        flat = aligned.new_zeros(rows * length)
        return flat.index_put((((row * length + place)[inside]),), aligned[0, inside]).view(rows, length)

    def objective_inputs(self) -> dict[str, Any]:
        """Keyword arguments of `flashreinforce_loss` for the `unpack`ed log-probs of `targets`."""
        return self._objective_inputs(self.unpack(self.behavior_log_probs), self.unpack(self.action_mask))

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory]) -> PackedRows:
        """Pack in the order of the trajectories."""
        rows = [row for trajectory in trajectories for row in trajectory.rows()]
        lengths = [row.tokens.size for row in rows]

        def join(parts: list[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts))[None]

        return cls(
            **_labels(trajectories),
            input_ids=join([row.tokens for row in rows]),
            position_ids=join([np.arange(length) for length in lengths]),
            cu_seqlens=torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)),
            max_seqlen=max(lengths),
            action_mask=join([row.action_mask for row in rows])[:, 1:],
            behavior_log_probs=join([_per_token_log_probs(row) for row in rows])[:, 1:],
        )


def _per_token_log_probs(row: Row) -> np.ndarray:
    values = np.zeros(row.tokens.size, dtype=np.float32)
    values[row.action_mask] = row.behavior_log_probs
    return values


def _labels(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    owners = [trajectory for trajectory in trajectories for _ in trajectory.lengths]
    labelled = owners[0].failed is not None
    return {
        "rewards": torch.tensor([owner.reward for owner in owners], dtype=torch.float32),
        "failures": torch.tensor([bool(owner.failed) for owner in owners]) if labelled else None,
        "trajectory_ids": torch.tensor([owner.trajectory_id for owner in owners], dtype=torch.int64),
    }
