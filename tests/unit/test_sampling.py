"""Drawing tokens."""

import numpy as np
import torch

from flashreinforce_molt.rollout.sampling import Sampling, draw, sampling_log_probs, uniforms


def test_evenly_spread_numbers_draw_tokens_in_proportion_to_their_probability() -> None:
    log_probs = torch.tensor([[0.5, 0.0, 0.2, 0.3]]).log().expand(1000, -1)
    drawn = draw(log_probs, (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000)
    assert torch.bincount(drawn, minlength=4).tolist() == [500, 0, 200, 300]


def test_tokens_without_probability_are_never_drawn_at_either_end() -> None:
    log_probs = torch.tensor([[0.0, 0.7, 0.3, 0.0]]).log().expand(2, -1)
    lowest, highest = 0.5 / 2**32, (2**32 - 0.5) / 2**32
    assert draw(log_probs, torch.tensor([lowest, highest], dtype=torch.float64)).tolist() == [1, 2]


def test_a_trajectory_has_its_own_stream_of_numbers() -> None:
    assert np.array_equal(uniforms(1, 7, 5), uniforms(1, 7, 9)[:5])
    assert not np.array_equal(uniforms(1, 7, 5), uniforms(1, 8, 5))
    assert not np.array_equal(uniforms(1, 7, 5), uniforms(2, 7, 5))
    many = np.concatenate([uniforms(0, i, 50) for i in range(2000)])
    assert many.min() > 0
    assert many.max() < 1
    assert abs(many.mean() - 0.5) < 0.005


def test_the_default_is_the_whole_softmax() -> None:
    logits = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sampling_log_probs(logits, Sampling(), [[]] * 3), torch.log_softmax(logits, -1))


def test_top_k_and_min_p_keep_what_they_say() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    top_two = sampling_log_probs(logits, Sampling(top_k=2), [[]]).exp()
    torch.testing.assert_close(top_two, torch.tensor([[0.625, 0.375, 0.0, 0.0]]))
    above_a_fifth = sampling_log_probs(logits, Sampling(min_p=0.2), [[]]).exp()
    torch.testing.assert_close(above_a_fifth, torch.tensor([[0.5, 0.3, 0.15, 0.0]]) / 0.95)


def test_a_repetition_penalty_weakens_only_tokens_that_were_seen() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    penalised = sampling_log_probs(logits, Sampling(repetition_penalty=2.0), [[0, 1, 1]])
    torch.testing.assert_close(penalised, torch.log_softmax(torch.tensor([[1.0, -2.0, 0.5]]), -1))
