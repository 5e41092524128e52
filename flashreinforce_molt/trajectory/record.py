"""One complete rollout, as the sampler saw it."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from numbers import Integral, Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from flashreinforce_molt.shown import shown

InfoValue = float | int | str | bool
_LARGEST_WHOLE = np.iinfo(np.int64).max
_ARRAYS = ("tokens", "action_mask", "behavior_log_probs", "policy_versions")


class ReadOnlyDict(dict[str, InfoValue]):
    """A dict that refuses changes; unlike a mappingproxy it can be pickled, copied and written as JSON."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a trajectory is read-only")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class Row(NamedTuple):
    """A piece of a trajectory that one forward pass reads; arrays as in `Trajectory`."""

    tokens: np.ndarray
    action_mask: np.ndarray
    behavior_log_probs: np.ndarray
    policy_versions: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """One rollout with all its turns. Validated on creation; its arrays and its info cannot be written.

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
    info: Mapping[str, InfoValue] = field(default_factory=dict)
    """Facts of the environment, such as turns and tool calls."""
    row_lengths: tuple[int, ...] | None = None
    """Tokens in each row of a trajectory whose context was rewritten; None: one row."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "trajectory_id", self._whole("trajectory_id"))
        for name in ("prompt_id", "finish_reason"):
            if not isinstance(getattr(self, name), str):
                raise self._refusal(name, f"{shown(getattr(self, name))} is not a string")
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
        return ValueError(f"trajectory {shown(self.trajectory_id)}: {name} {fault}")

    def _whole(self, name: str) -> int:
        value = getattr(self, name)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral) or value < 0:
            raise self._refusal(name, f"{shown(value)} is not a whole number, 0 or more")
        if int(value) > _LARGEST_WHOLE:
            raise self._refusal(name, f"{shown(value)} is more than int64 holds")
        return int(value)

    def _finite(self, name: str) -> float:
        value = getattr(self, name)
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
            raise self._refusal(name, f"{shown(value)} is not a finite number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        with np.errstate(over="ignore"):
            held = np.isfinite(np.float32(number))
        if not held:
            raise self._refusal(name, f"{shown(value)} is not a finite number in float32")
        return number

    def _label(self, name: str) -> bool | None:
        value = getattr(self, name)
        if value is not None and not isinstance(value, (bool, np.bool_)):
            raise self._refusal(name, f"{shown(value)} is neither True, False nor None (no label)")
        return None if value is None else bool(value)

    def _array(self, name: str, kinds: str, expected: str, size: int | None) -> np.ndarray:
        given = getattr(self, name)
        try:
            if isinstance(given, torch.Tensor):
                given = given.detach().cpu()
                given = given.float() if given.dtype == torch.bfloat16 else given  # NumPy has no bfloat16
            array = np.asarray(given)
        except (TypeError, ValueError, RuntimeError) as fault:
            raise self._refusal(name, f"cannot be read as an array: {fault}") from fault
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
        with np.errstate(over="ignore"):
            array = np.array(recorded, dtype=np.float32)
        wrong = ~(np.isfinite(array) & (recorded <= 0))  # as recorded: what rounds to 0 may be positive
        if wrong.any():
            at = int(wrong.argmax())
            raise self._refusal(
                "behavior_log_probs", f"[{at}] = {recorded[at]} is not finite and at most 0 in float32"
            )
        return array

    def _row_lengths(self) -> tuple[int, ...] | None:
        if self.row_lengths is None:
            return None
        try:
            lengths = tuple(self.row_lengths)
        except TypeError:
            raise self._refusal("row_lengths", f"{shown(self.row_lengths)} is not a sequence") from None
        whole = all(
            isinstance(length, Integral) and not isinstance(length, bool) and length > 0 for length in lengths
        )
        if not whole or sum(lengths) != self.tokens.size:
            raise self._refusal(
                "row_lengths", f"{shown(lengths)} are not positive parts of {self.tokens.size} tokens"
            )
        return tuple(int(length) for length in lengths)

    def _validate_row_starts(self) -> None:
        for start in (0, *accumulate(self.lengths[:-1])):
            if self.action_mask[start]:
                raise self._refusal(
                    "action_mask", f"[{start}] is the first token of a row: nothing predicts it"
                )

    def _info(self) -> ReadOnlyDict:
        if not isinstance(self.info, Mapping):
            raise self._refusal("info", f"{shown(self.info)} is not a mapping")
        info = {key: fact.item() if isinstance(fact, np.generic) else fact for key, fact in self.info.items()}
        for key, value in info.items():
            if not isinstance(key, str) or not isinstance(value, (float, int, str, bool)):
                raise self._refusal("info", f"[{shown(key)}] = {shown(value)} is not a number, text or flag")
            # The metrics of a batch are means over these: what is no number would end the run there.
            if not isinstance(value, str) and not abs(value) <= sys.float_info.max:
                raise self._refusal("info", f"[{shown(key)}] = {shown(value)} is not a finite number")
        return ReadOnlyDict(info)

    def _seal(self) -> None:
        for name in _ARRAYS:
            getattr(self, name).flags.writeable = False
