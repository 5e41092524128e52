"""One complete rollout, as the sampler saw it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

InfoValue = float | int | str | bool
_ARRAYS = ("tokens", "action_mask", "behavior_log_probs", "policy_versions")


class Row(NamedTuple):
    """A piece of a trajectory that one forward pass reads; arrays as in `Trajectory`."""

    tokens: np.ndarray
    action_mask: np.ndarray
    behavior_log_probs: np.ndarray
    policy_versions: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """One rollout with all its turns. Validated on creation; its arrays cannot be written.

    Behaviour log-probs come from the sampler, at sampling time, after temperature: nothing recomputes them, and a
    trajectory without them cannot be made.
    """

    trajectory_id: int
    """Unique in a run; a trajectory is trained at most once."""
    prompt_id: str
    tokens: np.ndarray
    """[N] int64: prompt, model and observation tokens in order; the rows one after the other."""
    action_mask: np.ndarray
    """[N] bool: True on policy tokens, those that the model sampled."""
    behavior_log_probs: np.ndarray = None  # type: ignore[assignment]  # absent: refused with the reason
    """[P] float32: log mu of each policy token, in order."""
    policy_versions: np.ndarray = None  # type: ignore[assignment]  # absent: refused with the reason
    """[P] int64: version of the weights that sampled each policy token."""
    reward: float
    failed: bool | None = None
    """Explicit failure label of the environment; None: it gives none. Never inferred from the reward."""
    finish_reason: str
    finished_version: int
    """Version of the weights that the worker held when the trajectory ended."""
    info: dict[str, InfoValue] = field(default_factory=dict)
    """Facts of the environment, such as turns and tool calls."""
    row_lengths: tuple[int, ...] | None = None
    """Tokens in each row of a trajectory whose context was rewritten; None: one row."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "trajectory_id", self._whole("trajectory_id"))
        for name in ("prompt_id", "finish_reason"):
            if not isinstance(getattr(self, name), str):
                raise self._refusal(name, f"{getattr(self, name)!r} is not a string")
        set_field(self, "tokens", self._integers("tokens"))
        if not self.tokens.size:
            raise self._refusal("tokens", "is empty")
        set_field(self, "action_mask", self._mask())
        set_field(self, "row_lengths", self._row_lengths())
        self._validate_row_starts()
        set_field(self, "behavior_log_probs", self._log_probs())
        set_field(self, "policy_versions", self._integers("policy_versions", self.policy_tokens))
        set_field(self, "finished_version", self._whole("finished_version"))
        newest = int(self.policy_versions.argmax())
        if self.finished_version < self.policy_versions[newest]:
            raise self._refusal(
                "finished_version",
                f"{self.finished_version} is older than policy_versions[{newest}] = {self.policy_versions[newest]}",
            )
        set_field(self, "reward", self._finite("reward"))
        set_field(self, "failed", self._label("failed"))
        set_field(self, "info", self._info())
        self._seal()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._seal()  # a pickled array forgets that it was read-only

    @property
    def policy_tokens(self) -> int:
        """T_i: tokens that the model sampled, over all rows."""
        return int(np.count_nonzero(self.action_mask))

    @property
    def turns(self) -> int:
        """Uninterrupted runs of policy tokens: what the model said between two observations."""
        starts = np.concatenate(([False], self.action_mask[:-1])) < self.action_mask
        return int(np.count_nonzero(starts))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in each row."""
        return self.row_lengths or (self.tokens.size,)

    def rows(self) -> Iterator[Row]:
        """The trajectory's rows, as read-only views."""
        ends = list(accumulate(self.lengths))
        done = 0
        for start, end in zip([0, *ends], ends, strict=False):
            mask = self.action_mask[start:end]
            sampled = slice(done, done := done + int(np.count_nonzero(mask)))
            yield Row(
                self.tokens[start:end], mask, self.behavior_log_probs[sampled], self.policy_versions[sampled]
            )

    def _refusal(self, name: str, fault: str) -> ValueError:
        return ValueError(f"trajectory {self.trajectory_id!r}: {name} {fault}")

    def _whole(self, name: str) -> int:
        value = getattr(self, name)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral) or value < 0:
            raise self._refusal(name, f"{value!r} is not a whole number, 0 or more")
        return int(value)

    def _finite(self, name: str) -> float:
        value = getattr(self, name)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real) or not math.isfinite(value):
            raise self._refusal(name, f"{value!r} is not a finite number")
        return float(value)

    def _label(self, name: str) -> bool | None:
        value = getattr(self, name)
        if value is not None and not isinstance(value, (bool, np.bool_)):
            raise self._refusal(name, f"{value!r} is neither True, False nor None (no label)")
        return None if value is None else bool(value)

    def _array(self, name: str, kinds: str, expected: str, size: int | None) -> np.ndarray:
        array = np.asarray(getattr(self, name))
        if array.dtype == object and None in array.ravel().tolist():
            raise self._refusal(
                name, "is missing: the sampler records it for every token, it is never recomputed"
            )
        if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
            shape = list(array.shape)
            raise self._refusal(name, f"must be one-dimensional {expected}, got {array.dtype} {shape}")
        if size is not None and array.size != size:
            raise self._refusal(name, f"has {array.size} values, expected {size}")
        return array

    def _integers(self, name: str, size: int | None = None) -> np.ndarray:
        array = np.array(self._array(name, "iu", "integers", size), dtype=np.int64)
        if (array < 0).any():
            at = int((array < 0).argmax())
            raise self._refusal(name, f"[{at}] = {array[at]} is negative")
        return array

    def _mask(self) -> np.ndarray:
        mask = np.array(self._array("action_mask", "b", "booleans", self.tokens.size), dtype=np.bool_)
        if not mask.any():
            raise self._refusal("action_mask", "has no policy token")
        return mask

    def _log_probs(self) -> np.ndarray:
        recorded = self._array("behavior_log_probs", "fiu", "numbers", self.policy_tokens)
        array = np.array(recorded, dtype=np.float32)
        wrong = ~(np.isfinite(array) & (array <= 0))
        if wrong.any():
            at = int(wrong.argmax())
            raise self._refusal("behavior_log_probs", f"[{at}] = {array[at]} is not finite and at most 0")
        return array

    def _row_lengths(self) -> tuple[int, ...] | None:
        if self.row_lengths is None:
            return None
        lengths = tuple(self.row_lengths)
        whole = all(isinstance(length, Integral) and length > 0 for length in lengths)
        if not whole or sum(lengths) != self.tokens.size:
            raise self._refusal(
                "row_lengths", f"{lengths} are not positive parts of {self.tokens.size} tokens"
            )
        return tuple(int(length) for length in lengths)

    def _validate_row_starts(self) -> None:
        for start in (0, *accumulate(self.lengths[:-1])):
            if self.action_mask[start]:
                raise self._refusal(
                    "action_mask", f"[{start}] is the first token of a row: nothing predicts it"
                )

    def _info(self) -> dict[str, InfoValue]:
        if not isinstance(self.info, Mapping):
            raise self._refusal("info", f"{self.info!r} is not a mapping")
        info = {key: fact.item() if isinstance(fact, np.generic) else fact for key, fact in self.info.items()}
        for key, value in info.items():
            if not isinstance(key, str) or not isinstance(value, (float, int, str, bool)):
                raise self._refusal("info", f"[{key!r}] = {value!r} is not a number, text or flag")
        return info

    def _seal(self) -> None:
        for name in _ARRAYS:
            getattr(self, name).flags.writeable = False
