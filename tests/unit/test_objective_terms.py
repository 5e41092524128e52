"""Each term of the objective by itself."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashreinforce_molt.objective import (
    BatchTotals,
    bernoulli_kl,
    center_rewards,
    failure_token_filter,
    group_rows,
    importance_ratio,
    kept_tokens,
    merge_stats,
    sequence_gate,
    token_denominators,
    token_gate,
)


def test_rows_are_grouped_in_order_of_first_appearance():
    rows = group_rows(torch.tensor([7, 3, 7, 9, 3]), torch.ones(5, 1, dtype=torch.bool))
    assert rows.index.tolist() == [0, 1, 0, 2, 1]
    assert rows.first.tolist() == [0, 1, 3]
    assert rows.sum(torch.tensor([1, 10, 2, 100, 20])).tolist() == [3, 30, 100]
    assert rows.spread(torch.tensor([5, 6, 7])).tolist() == [5, 6, 5, 7, 6]


def test_trajectory_mean_is_over_policy_tokens_of_all_rows():
    mask = torch.tensor([[True, False], [True, True]])
    rows = group_rows(torch.tensor([1, 1]), mask)
    assert rows.mean(torch.tensor([[3.0, math.nan], [4.0, 8.0]]), mask).tolist() == [5]
    assert rows.policy_tokens(mask).tolist() == [3]


def test_rewards_are_centred_and_never_scaled():
    assert center_rewards(torch.tensor([0.0, 4.0]), 2.0).tolist() == [-2, 2]
    assert center_rewards(torch.tensor([1.0], dtype=torch.bfloat16), 0.001).dtype == torch.float32


def test_bernoulli_kl_of_known_probabilities():
    p, q = torch.tensor([0.5, 0.25], dtype=torch.float64), torch.tensor([0.25, 0.5], dtype=torch.float64)
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)]
    assert bernoulli_kl(q.log(), p.log()).tolist() == pytest.approx(expected)


def test_bernoulli_kl_is_zero_on_policy_and_finite_at_the_ends():
    ends = torch.tensor([0.0, -1e-9, -1.0, -200.0])
    assert bernoulli_kl(ends, ends).tolist() == [0, 0, 0, 0]
    certain_to_impossible = bernoulli_kl(torch.tensor(-200.0), torch.tensor(0.0)).item()
    assert certain_to_impossible == pytest.approx(math.log(1e6), rel=1e-4)


def test_bernoulli_kl_in_float32_keeps_the_other_probability_where_the_token_is_near_certain():
    behavior, log_prob = torch.tensor(-1.0, dtype=torch.float64), torch.tensor(-2e-6, dtype=torch.float64)
    exact = bernoulli_kl(log_prob, behavior).item()
    assert bernoulli_kl(log_prob.float(), behavior.float()).item() == pytest.approx(exact, rel=1e-6)


@given(st.floats(1e-6, 1 - 1e-6), st.floats(1e-6, 1 - 1e-6))
def test_bernoulli_kl_is_never_negative(p, q):
    for dtype in (torch.float32, torch.float64):
        log_prob, behavior = (torch.tensor(value, dtype=dtype).log() for value in (q, p))
        assert bernoulli_kl(log_prob, behavior).item() >= 0


def test_bernoulli_kl_of_nearly_equal_policies_never_rounds_below_zero():
    behavior = torch.linspace(-8, -1e-4, 20_000)
    assert (bernoulli_kl((behavior + 1e-6).clamp(max=0), behavior) >= 0).all()


def test_ratio_is_clamped_on_both_sides_only_where_a_limit_is_given():
    log_ratio = torch.tensor([-40.0, 0.0, 40.0], dtype=torch.float64)
    assert importance_ratio(log_ratio).tolist() == pytest.approx([math.exp(-40), 1, math.exp(40)])
    assert importance_ratio(log_ratio, 30).tolist() == pytest.approx([math.exp(-30), 1, math.exp(30)])


def test_gates_admit_the_boundary():
    drift = torch.tensor([0.1, 0.2, 0.3])
    assert sequence_gate(drift, 0.2).tolist() == [True, True, False]
    assert token_gate(drift, 0.2).tolist() == [True, True, False]
    assert sequence_gate(drift, math.inf).all()


@pytest.mark.parametrize(
    ("fraction", "tokens", "kept"),
    [
        (0.28, 25, 7),
        (0.29, 100, 29),
        (0.9, 10, 9),
        (0.2, 7, 2),
        (1e-5, 100_000, 1),
        (0.0, 5, 0),
        (1.0, 5, 5),
        (0.07, 100, 7),
    ],
)
def test_ceiling_is_exact_for_decimal_fractions(fraction, tokens, kept):
    assert kept_tokens(tokens, fraction) == kept


@given(st.integers(0, 100), st.integers(0, 10_000))
def test_ceiling_of_a_percentage_is_that_of_the_fraction(percent, tokens):
    assert kept_tokens(tokens, percent / 100) == math.ceil(Fraction(percent, 100) * tokens)


def test_filter_ranks_over_all_rows_and_breaks_ties_in_token_order():
    mask = torch.tensor([[True, True, False], [True, True, True], [True, True, True]])
    rows = group_rows(torch.tensor([8, 2, 8]), mask)
    entropies = torch.tensor([[0.5, 0.5, math.nan], [0.1, 0.2, 0.3], [0.9, 0.5, 0.5]])
    kept = failure_token_filter(entropies, torch.tensor([True, False, True]), mask, rows, 0.6)
    assert kept.int().tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]


def test_denominators_are_integers_of_the_whole_batch():
    totals, lengths = BatchTotals(trajectories=10, reward_mean=0.0, policy_tokens=999), torch.tensor([3, 5])
    assert token_denominators(lengths, totals).tolist() == [30, 50]
    assert token_denominators(lengths, totals, "token-mean").tolist() == [999, 999]
    assert token_denominators(lengths, totals, "constant-length", 100).tolist() == [1000, 1000]
    with pytest.raises(ValueError, match=r"'constant-length' with constant_length=None"):
        token_denominators(lengths, totals, "constant-length")


def test_totals_count_each_trajectory_once():
    mask = torch.tensor([[True, False], [True, True], [True, True]])
    totals = BatchTotals.count(torch.tensor([1.0, 1.0, 0.0]), mask, torch.tensor([6, 6, 1]))
    assert totals == BatchTotals(trajectories=2, reward_mean=0.5, policy_tokens=5)


@given(st.floats(-1e9, 1e9), st.integers(1, 40), st.integers(1, 40))
def test_mean_of_equal_rewards_is_that_reward_to_the_last_bit(reward, first, second):
    parts = [BatchTotals.of_rewards([reward] * count, count) for count in (first, second)]
    assert parts[0].reward_mean == BatchTotals.combine(parts).reward_mean == reward


def test_totals_refuse_rewards_that_are_not_finite():
    with pytest.raises(ValueError, match="rewards must be finite"):
        BatchTotals.of_rewards([1.0, math.nan], 2)


def test_no_statistics_cannot_be_merged():
    with pytest.raises(ValueError, match="at least one shard"):
        merge_stats([])
