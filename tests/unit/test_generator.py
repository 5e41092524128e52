"""The slot decoder: exact log-probs however trajectories join, wait, return and leave."""

import pytest
import torch
from tiny_engine import (
    forward_log_probs,
    generation,
    recorded_and_forward,
    run_to_end,
    tiny_generator,
    tiny_policy,
)

from flashreinforce_molt.models import rollout_model
from flashreinforce_molt.rollout.generator import NonFiniteLogitsError
from flashreinforce_molt.rollout.slot_attention import groups_of, keys_read, slot_attention
from flashreinforce_molt.rollout.slot_cache import SlotCache


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_log_probs_are_those_of_a_full_forward_pass(temperature: float) -> None:
    model = tiny_policy().model
    generator = tiny_generator(model, slots=3, stop=-1, temperature=temperature)
    waiting = [generation(i, list(range(4, 6 + 3 * i)), budget=3 + 4 * (i % 3)) for i in range(7)]
    ended = []
    while waiting or generator.active:
        while waiting and generator.free:
            generator.join([waiting.pop(0)])
        for done in generator.step():
            generator.leave(done)
            ended.append(done)
    assert sorted(done.trajectory_id for done in ended) == list(range(7))
    for done in ended:
        recorded, wanted = recorded_and_forward(model, done, temperature)
        torch.testing.assert_close(recorded, wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize("unread", [1, 2, 5, 15, 16, 17, 30])
def test_a_context_that_is_fed_beside_the_others_counts_as_one_read_in_a_pass(unread: int) -> None:
    model = tiny_policy().model
    generator = tiny_generator(model, slots=3, stop=-1)
    busy, prompted = generation(0, [5, 6, 7], budget=40), generation(1, [8] * (unread + 1), budget=4)
    generator.join([busy])
    generator.step()
    generator.join([prompted])
    assert generator.step() == []
    assert prompted.tokens[: unread + 1] == [8] * (unread + 1)
    while not prompted.end:
        generator.step()
    assert prompted.policy == [False] * (unread + 1) + [True] * 4
    assert generator.tokens_drawn == len(busy.log_probs) + 4
    for done in (busy, prompted):
        recorded, wanted = recorded_and_forward(model, done)
        torch.testing.assert_close(recorded, wanted, atol=2e-5, rtol=0)


def test_an_answer_that_is_there_before_the_next_step_costs_no_move() -> None:
    model = tiny_policy().model
    generator = tiny_generator(model, slots=3, stop=-1)
    quick, slow, other = (generation(i, [4 + i, 5], budget=3) for i in range(3))
    generator.join([quick, slow, other])
    while not quick.end:
        generator.step()
    assert (quick.end, slow.end, other.end, generator.active) == ("length", "length", "length", 3)
    quick.observe([9, 9])
    quick.turn_budget = 2
    generator.join([quick])
    ended = []
    while not quick.end:
        ended += generator.step()
    assert ended == [quick]
    slow.observe([11])
    generator.join([slow])
    run_to_end(generator)
    assert generator.free == 1
    for done, spoken in ((quick, 5), (slow, 6), (other, 3)):
        recorded, wanted = recorded_and_forward(model, done)
        assert len(recorded) == spoken
        torch.testing.assert_close(recorded, wanted, atol=2e-5, rtol=0)


def test_a_crowd_sorted_by_length_samples_what_each_row_samples_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = tiny_policy()
    model = rollout_model(policy.model.config, "float32", "cpu")
    model.load_state_dict(policy.model.state_dict())
    lengths = [2 + (7 * i) % 23 for i in range(70)]
    crowd = tiny_generator(model, slots=50, stop=-1)
    waiting = [generation(i, [4 + i % 9] * length, budget=3 + i % 17) for i, length in enumerate(lengths)]
    ended, sorts = [], []
    monkeypatch.setattr(
        crowd.cache, "reorder", lambda *order: (sorts.append(order), SlotCache.reorder(crowd.cache, *order))
    )
    while waiting or crowd.active:
        while waiting and crowd.free:
            crowd.join([waiting.pop()])
        for done in crowd.step():
            crowd.leave(done)
            ended.append(done)
    assert len(ended) == 70
    assert sorts
    for done in ended:
        recorded, wanted = recorded_and_forward(policy.model, done)
        torch.testing.assert_close(recorded, wanted, atol=2e-5, rtol=0)


def test_a_sample_does_not_depend_on_its_batch_mates() -> None:
    model = tiny_policy().model
    alone = tiny_generator(model, slots=1, stop=-1)
    alone.join([generation(5, [7, 8, 9], budget=12)])
    (lonely,) = run_to_end(alone)

    crowd = tiny_generator(model, slots=4, stop=-1)
    crowd.join([generation(i, [4 + i] * (2 + i), budget=5 + i) for i in range(3)])
    crowd.step()
    crowd.step()
    crowd.join([generation(5, [7, 8, 9], budget=12)])
    crowded = next(done for done in run_to_end(crowd) if done.trajectory_id == 5)
    assert crowded.tokens == lonely.tokens


def test_waiting_trajectories_keep_their_context_and_observations_are_not_policy_tokens() -> None:
    model = tiny_policy().model
    generator = tiny_generator(model, slots=4, stop=-1)
    first, second, third = (generation(i, [4 + i] * (3 + i), budget=4 + i) for i in range(3))
    generator.join([first, second, third])
    parked = []
    while generator.active:
        parked += generator.step()
    assert parked == [first, second, third]
    assert generator.free == 1
    generator.leave(second)
    third.observe([30, 31, 32, 33, 34])
    first.observe([20])
    third.turn_budget, first.turn_budget = 3, 5
    late = generation(9, [40, 41], budget=6)
    generator.join([third, late, first])
    ended = run_to_end(generator)
    assert {done.trajectory_id for done in ended} == {0, 2, 9}
    assert third.policy == [False] * 5 + [True] * 6 + [False] * 5 + [True] * 3
    for done in ended:
        recorded, wanted = recorded_and_forward(model, done)
        torch.testing.assert_close(recorded, wanted, atol=2e-5, rtol=0)


def test_every_token_is_stamped_with_the_version_that_sampled_it() -> None:
    generator = tiny_generator(tiny_policy().model, slots=2, stop=-1)
    early = generation(0, [5, 6], budget=5)
    generator.version = 3
    generator.join([early])
    while len(early.versions) < 2:
        generator.step()
    generator.version = 4
    late = generation(1, [5, 6], budget=2)
    generator.join([late])
    run_to_end(generator)
    assert early.versions == [3, 3, 4, 4, 4]
    assert late.versions == [4, 4]


def test_a_stop_token_ends_a_turn_and_a_budget_cuts_it() -> None:
    model = tiny_policy().model
    probe = tiny_generator(model, slots=1, stop=-1)
    probe.join([generation(0, [5, 6, 7], budget=9)])
    (free_run,) = run_to_end(probe)
    third = free_run.tokens[5]
    index = free_run.tokens[3:].index(third)
    generator = tiny_generator(model, slots=1, stop=third)
    generator.join([generation(0, [5, 6, 7], budget=9)])
    (stopped,) = run_to_end(generator)
    assert stopped.end == "stop"
    assert stopped.tokens == free_run.tokens[: 3 + index + 1]
    assert free_run.end == "length"


def test_greedy_decoding_takes_the_likeliest_token() -> None:
    model = tiny_policy().model
    generator = tiny_generator(model, slots=1, stop=-1, greedy=True)
    generator.join([generation(0, [5, 6, 7], budget=6)])
    (done,) = run_to_end(generator)
    best = forward_log_probs(model, done.tokens).argmax(-1).tolist()
    assert done.tokens[3:] == best[2:]


def test_truncated_sampling_records_the_truncated_distribution() -> None:
    model = tiny_policy().model
    generator = tiny_generator(model, slots=1, stop=-1, top_p=0.5)
    generator.join([generation(0, [5, 6, 7], budget=6)])
    (done,) = run_to_end(generator)
    full = forward_log_probs(model, done.tokens)
    for position, recorded in zip(range(2, 8), done.log_probs, strict=True):
        probabilities, order = full[position].exp().sort(descending=True)
        kept = int((probabilities.cumsum(0) < 0.5).sum()) + 1
        assert done.tokens[position + 1] in order[:kept]
        wanted = full[position, done.tokens[position + 1]] - probabilities[:kept].sum().log()
        assert recorded == pytest.approx(wanted.item(), abs=2e-5)


def test_logits_that_are_not_finite_stop_the_decoder_by_name() -> None:
    policy = tiny_policy()
    with torch.no_grad():
        policy.model.model.norm.weight.fill_(float("nan"))
    generator = tiny_generator(policy.model, slots=1)
    generator.version = 8
    generator.join([generation(17, [5, 6], budget=3)])
    with pytest.raises(NonFiniteLogitsError, match=r"trajectory 17, token 2: .* nan under policy version 8"):
        run_to_end(generator)


def test_models_with_sliding_windows_are_refused_by_name() -> None:
    model = tiny_policy(use_sliding_window=True, sliding_window=8, max_window_layers=1).model
    with pytest.raises(ValueError, match="sliding_attention"):
        tiny_generator(model)


def test_neighbouring_rows_share_a_group_and_read_as_far_as_its_longest() -> None:
    lengths = [40, 3] + [5] * 14 + [2, 9]
    assert groups_of(lengths) == [(0, 16, 40), (16, 18, 9)]
    assert keys_read(lengths) == 16 * 40 + 2 * 9


def test_attention_by_groups_is_attention_over_all_rows() -> None:
    torch.manual_seed(0)
    lengths = [int(n) for n in torch.randint(1, 30, (37,))]
    layer = torch.nn.Module()
    layer.num_key_value_groups = 2
    query, key, value = torch.randn(37, 4, 1, 8), torch.randn(37, 2, 30, 8), torch.randn(37, 2, 30, 8)
    mask = (torch.arange(30) < torch.tensor(lengths)[:, None])[:, None, None]
    whole, _ = slot_attention(layer, query, key, value, mask, scaling=0.3)
    grouped, _ = slot_attention(layer, query, key, value, mask, slot_groups=groups_of(lengths), scaling=0.3)
    torch.testing.assert_close(grouped, whole, atol=1e-6, rtol=0)
    for row, length in enumerate(lengths):
        scores = (
            torch.einsum("hd,hnd->hn", query[row, :, 0], key[row, :, :length].repeat_interleave(2, 0)) * 0.3
        )
        wanted = torch.einsum(
            "hn,hnd->hd", scores.softmax(-1), value[row, :, :length].repeat_interleave(2, 0)
        )
        torch.testing.assert_close(grouped[row, 0], wanted, atol=1e-5, rtol=0)
