"""The loss under hostile input: a finite loss or a ValueError that names the field, never an error of torch."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hostile import told
from hypothesis import given, settings
from hypothesis import strategies as st

from flashreinforce_molt import BatchTotals, flashreinforce_loss


def batch() -> dict[str, Any]:
    """Two trajectories of two tokens; the second has drifted by a nat on one token."""
    return {
        "log_probs": torch.tensor([[-1.0, -1.0], [-1.0, -2.0]]),
        "behavior_log_probs": torch.tensor([[-1.0, -1.0], [-1.0, -1.0]]),
        "rewards": torch.tensor([1.0, 0.0]),
        "action_mask": torch.ones(2, 2, dtype=torch.bool),
    }


OPTIONS = (
    "delta",
    "negative_token_fraction",
    "ratio_gradient",
    "log_ratio_limit",
    "aggregation",
    "constant_length",
    "gate",
    "importance_correction",
    "totals",
)
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63]),
    st.floats(),
    st.fractions(),
    st.text(max_size=8),
    st.sampled_from(["sequence", "token", "none", "through", "detached", "sample-mean", "constant-length"]),
    st.lists(st.integers(), max_size=2),
    st.just(np.array([1.0, 2.0])),
    st.just(torch.ones(2)),
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(OPTIONS), ANYTHING, max_size=2))
def test_any_option_gives_a_finite_loss_or_is_named(options: dict[str, Any]) -> None:
    result, refusal = told(lambda: flashreinforce_loss(**batch(), **options), ValueError)
    if refusal:
        assert refusal.startswith((*options, "constant_length", "entropies", "failures"))
        assert len(refusal) < 300
    else:
        assert result[0].isfinite()


@pytest.mark.parametrize("option", ["delta", "negative_token_fraction", "log_ratio_limit", "constant_length"])
def test_a_number_that_no_float_holds_is_named_in_short(option: str) -> None:
    with pytest.raises(ValueError, match=rf"^{option}=\d+\.\.\."):
        flashreinforce_loss(**batch(), **{option: 10**400})
    with pytest.raises(ValueError, match=f"^{option}=a huge integer"):
        flashreinforce_loss(**batch(), **{option: 10**5000})


@pytest.mark.parametrize("option", ["ratio_gradient", "aggregation", "gate"])
def test_an_array_is_no_choice(option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option}=array.* is unknown; choose one of"):
        flashreinforce_loss(**batch(), **{option: np.array(["none", "sequence"])})


def test_a_fraction_is_a_number() -> None:
    """Drifts are 0 and half of 0.1498..., so the second trajectory is rejected: -(1/2)(1/2)(1/2)(-1 - 1)."""
    loss, stats = flashreinforce_loss(**batch(), delta=Fraction(1, 300), log_ratio_limit=Fraction(1, 2))
    assert stats["admitted"].tolist() == [True, False]
    assert loss.item() == pytest.approx(0.25)


def test_a_limit_beyond_the_dtype_clamps_nothing() -> None:
    plain, _ = flashreinforce_loss(**batch(), gate="none")
    limited, stats = flashreinforce_loss(**batch(), gate="none", log_ratio_limit=1e300)
    assert torch.equal(plain, limited)
    assert stats["clamped_tokens"] == 0


@pytest.mark.parametrize("field", ["log_probs", "behavior_log_probs", "rewards", "action_mask"])
def test_a_sparse_tensor_is_named(field: str) -> None:
    inputs = batch()
    with pytest.raises(ValueError, match=f"^{field} is a torch.sparse_coo tensor"):
        flashreinforce_loss(**inputs | {field: inputs[field].to_sparse()})


def test_tensors_without_values_are_named() -> None:
    with pytest.raises(ValueError, match=r"^log_probs is a meta tensor"):
        flashreinforce_loss(**{name: tensor.to("meta") for name, tensor in batch().items()})


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (("2", 0.0, 4), "totals.trajectories='2' must be a whole number"),
        ((2, "0", 4), "totals.reward_mean='0' must be a number"),
        ((2, 10**400, 4), "totals.reward_mean=.* must be finite"),
        ((2, math.nan, 4), "totals.reward_mean=nan must be finite"),
        ((2, 0.0, 4.0), "totals.policy_tokens=4.0 must be a whole number"),
        ((2**32, 0.0, 2**33), "more than the int64 of a denominator holds"),
    ],
)
def test_totals_that_cannot_be_counts_are_refused(counts: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BatchTotals(*counts)
