"""The loss on batches small enough to compute by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashreinforce_molt import BatchTotals, flashreinforce_loss

HALF, QUARTER = math.log(0.5), math.log(0.25)


def batch(log_probs, behavior, rewards, mask=None, dtype=torch.float64):
    log_probs = torch.tensor(log_probs, dtype=dtype, requires_grad=True)
    mask = torch.ones(log_probs.shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    return log_probs, torch.tensor(behavior, dtype=dtype), torch.tensor(rewards, dtype=dtype), mask


def two_trajectories(dtype=torch.float64):
    """Rewards 1 and 0, two tokens and one; ratios 2, 1 and 1/2."""
    return batch(
        [[HALF, HALF], [QUARTER, -9.0]],
        [[QUARTER, HALF], [HALF, -9.0]],
        [1, 0],
        [[1, 1], [1, 0]],
        dtype=dtype,
    )


def gradient_of(inputs, **options):
    loss, stats = flashreinforce_loss(*inputs, **options)
    return torch.autograd.grad(loss, inputs[0])[0].tolist(), loss.item(), stats


def test_gradient_is_minus_advantage_times_ratio_over_batch_and_length():
    gradient, loss, stats = gradient_of(two_trajectories(), delta=math.inf)
    # A = +-1/2, B = 2, T = (2, 1): weight of a token = A rho / (B T).
    assert gradient == [pytest.approx([-0.25, -0.125]), pytest.approx([0.125, 0.0])]
    assert loss == pytest.approx(-(0.25 * HALF + 0.125 * HALF - 0.125 * QUARTER))
    assert stats["advantages"].tolist() == [0.5, -0.5]
    assert stats["policy_tokens"] == stats["retained_tokens"] == 3
    assert stats["max_ratio"].item() == pytest.approx(2)
    assert stats["top_token_share"].item() == pytest.approx(0.5)


def test_through_the_ratio_the_loss_is_the_objective_itself():
    gradient, loss, _ = gradient_of(two_trajectories(), delta=math.inf, ratio_gradient="through")
    assert gradient == [pytest.approx([-0.25, -0.125]), pytest.approx([0.125, 0.0])]
    assert loss == pytest.approx(-(0.5 / 4 * (2 + 1) - 0.5 / 2 * 0.5))


def test_clamped_ratio_keeps_a_gradient_only_when_detached():
    limit = math.log(1.5)
    options = {"delta": math.inf, "log_ratio_limit": limit}
    detached, _, stats = gradient_of(two_trajectories(), **options)
    through, _, _ = gradient_of(two_trajectories(), **options, ratio_gradient="through")
    assert detached == [pytest.approx([-0.1875, -0.125]), pytest.approx([0.25 / 1.5, 0.0])]
    assert through == [pytest.approx([0.0, -0.125]), [0.0, 0.0]]
    assert stats["clamped_tokens"] == 2
    assert stats["max_ratio"].item() == pytest.approx(1.5)
    assert stats["max_ratio_before_gate"].item() == pytest.approx(2)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"aggregation": "token-mean"}, [[1 / 3, 1 / 6], [-1 / 12, 0]]),
        ({"aggregation": "constant-length", "constant_length": 10}, [[1 / 20, 1 / 40], [-1 / 80, 0]]),
        ({"importance_correction": False}, [[1 / 8, 1 / 8], [-1 / 4, 0]]),
        (
            {"importance_correction": False, "ratio_gradient": "through", "delta": 0},
            [[1 / 8, 1 / 8], [-1 / 4, 0]],
        ),
        ({"gate": "none", "delta": 0}, [[1 / 4, 1 / 8], [-1 / 8, 0]]),
        ({"gate": "token", "delta": 0}, [[0, 1 / 8], [0, 0]]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_published_ablations_change_their_factor_only(options, weights):
    gradient, _, _ = gradient_of(two_trajectories(), **{"delta": math.inf} | options)
    assert gradient == [pytest.approx([-weight for weight in row]) for row in weights]


def test_without_importance_correction_the_drift_is_still_measured():
    inputs = two_trajectories()
    _, corrected = flashreinforce_loss(*inputs, delta=0)
    _, uncorrected = flashreinforce_loss(*inputs, delta=0, importance_correction=False, log_ratio_limit=0.1)
    assert corrected["acceptance_rate"] == 0
    assert uncorrected["acceptance_rate"] == uncorrected["max_ratio"] == 1
    assert uncorrected["clamped_tokens"] == 0
    assert uncorrected["max_ratio_before_gate"].item() == pytest.approx(2)
    assert torch.equal(corrected["sequence_kl"], uncorrected["sequence_kl"])


def test_largest_ratio_is_that_of_a_policy_token_also_where_all_have_shrunk():
    _, stats = flashreinforce_loss(*batch([[QUARTER, HALF]], [[HALF, HALF]], [1], [[1, 0]]), delta=math.inf)
    assert stats["max_ratio"].item() == pytest.approx(0.5)
    assert stats["max_ratio_before_gate"].item() == pytest.approx(0.5)


def test_drift_equal_to_delta_is_admitted_and_one_step_less_is_not():
    for dtype in (torch.float32, torch.float64):
        inputs = two_trajectories(dtype)
        _, stats = flashreinforce_loss(*inputs, delta=math.inf)
        drift = stats["sequence_kl"][1]
        below = torch.nextafter(drift, torch.zeros_like(drift))
        _, at = flashreinforce_loss(*inputs, delta=drift.item())
        _, under = flashreinforce_loss(*inputs, delta=below.item())
        assert at["admitted"][1]
        assert not under["admitted"][1]


def test_a_rejected_trajectory_stays_in_baseline_and_batch_count():
    inputs = batch([[HALF], [-0.01], [HALF]], [[HALF], [-5.0], [HALF]], [0, 1, 2])
    gradient, _, stats = gradient_of(inputs, delta=1e-3)
    assert stats["admitted"].tolist() == [True, False, True]
    assert stats["advantages"].tolist() == [-1, 0, 1]
    assert gradient == [[pytest.approx(1 / 3)], [0], [pytest.approx(-1 / 3)]]
    assert stats["acceptance_rate"].item() == pytest.approx(2 / 3)


def test_all_rejected_gives_exactly_zero_loss_and_gradient():
    gradient, loss, stats = gradient_of(batch([[-0.01], [-0.01]], [[-5.0], [-5.0]], [0, 1]))
    assert loss == 0
    assert gradient == [[0], [0]]
    for name in ("acceptance_rate", "max_ratio", "top_token_share", "retained_tokens"):
        assert stats[name] == 0, name
    assert stats["max_ratio_before_gate"].item() == pytest.approx(math.exp(4.99))


@pytest.mark.parametrize("reward", [0.1, 0.3, -1e-3, 1e6 + 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero_gradient(reward, dtype):
    gradient, loss, _ = gradient_of(
        batch([[HALF]] * 3, [[QUARTER]] * 3, [reward] * 3, dtype=dtype), delta=math.inf
    )
    assert gradient == [[0]] * 3
    assert loss == 0


def test_rows_of_one_trajectory_share_reward_length_gate_and_place_in_the_batch():
    # Trajectory 5 has rows 0 and 2 with one and two tokens; counted by row the advantages would be 1/3, -2/3, 1/3.
    inputs = batch([[HALF, -1.0], [HALF, -1.0], [HALF, HALF]], [[HALF, -1.0]] * 2 + [[HALF, HALF]], [1, 0, 1],
                   [[1, 0], [1, 0], [1, 1]])  # fmt: skip
    gradient, _, stats = gradient_of(inputs, trajectory_ids=torch.tensor([5, 9, 5]))
    assert stats["trajectory_ids"].tolist() == [5, 9]
    assert stats["advantages"].tolist() == [0.5, -0.5]
    third = 0.5 / 2 / 3
    assert gradient == [pytest.approx([-third, 0]), pytest.approx([0.25, 0]), pytest.approx([-third, -third])]


def test_one_far_row_rejects_the_whole_trajectory():
    inputs = batch([[HALF], [-0.01], [HALF]], [[HALF], [-5.0], [HALF]], [1, 1, 0])
    gradient, _, stats = gradient_of(inputs, trajectory_ids=torch.tensor([3, 3, 4]))
    assert stats["admitted"].tolist() == [False, True]
    assert gradient == [[0], [0], [pytest.approx(0.25)]]


def test_failure_filter_keeps_the_most_uncertain_tokens_and_the_original_length():
    inputs = batch([[HALF] * 4] * 2, [[HALF] * 4] * 2, [0, 1])
    gradient, _, stats = gradient_of(
        inputs,
        negative_token_fraction=0.5,
        entropies=torch.tensor([[0.1, 0.7, 0.7, 0.9], [0.1, 0.2, 0.3, 0.4]]),
        failures=torch.tensor([True, False]),
    )
    assert gradient == [[0, 0.0625, 0, 0.0625], [-0.0625] * 4]
    assert stats["retained_tokens"] == 6
    assert stats["acceptance_rate"] == 1


def test_mean_drift_gate_does_not_bound_a_single_weight():
    """31 tokens on policy and one at -12 against -3: admitted at delta 3e-3, and it owns the gradient."""
    behavior = torch.full((2, 32), HALF)
    behavior[0, 17] = -12
    log_probs = behavior.clone()
    log_probs[0, 17] = -3
    log_probs.requires_grad_()
    loss, stats = flashreinforce_loss(
        log_probs, behavior, torch.tensor([1.0, 0.0]), torch.ones(2, 32, dtype=torch.bool), delta=3e-3
    )
    (gradient,) = torch.autograd.grad(loss, log_probs)

    assert stats["admitted"].tolist() == [True, True]
    assert stats["sequence_kl"][0].item() == pytest.approx(1.59e-3, rel=0.01)
    assert stats["max_ratio"].item() == pytest.approx(8103.08, rel=1e-4)
    assert stats["top_token_share"].item() == pytest.approx(8103.08 / (8103.08 + 63), rel=1e-4)
    assert (gradient.abs().max() / gradient.abs().sum()).item() == pytest.approx(
        stats["top_token_share"].item()
    )


def test_overflow_of_a_retained_token_is_named():
    inputs = batch([[HALF, HALF], [HALF, -0.5]], [[HALF, HALF], [HALF, -90.0]], [1, 0], dtype=torch.float32)
    with pytest.raises(FloatingPointError, match=r"row 1, token 1, trajectory 7.* log-ratio 89\.5 .*float32"):
        flashreinforce_loss(*inputs, delta=math.inf, trajectory_ids=torch.tensor([4, 7]))
    _, stats = flashreinforce_loss(*inputs, delta=math.inf, log_ratio_limit=30)
    assert stats["max_ratio"].item() == pytest.approx(math.exp(30))


def test_overflow_is_named_even_where_the_advantage_is_zero():
    with pytest.raises(FloatingPointError, match="row 0, token 0, trajectory 0"):
        flashreinforce_loss(*batch([[-0.5]], [[-2000.0]], [1]), delta=math.inf)


def test_a_gradient_that_its_dtype_cannot_hold_is_an_overflow():
    inputs = batch([[-0.5], [-0.5]], [[-13.0], [-0.5]], [1, 0], dtype=torch.float16)
    with pytest.raises(FloatingPointError, match=r"row 0, token 0.*float16"):
        flashreinforce_loss(*inputs, delta=math.inf)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_advantage_that_overflows_is_blamed_on_the_rewards_even_where_the_gate_rejects(dtype):
    most = torch.finfo(dtype).max
    inputs = batch([[-0.5]] * 3, [[-0.5], [-0.5], [-9.0]], [-most, -most, most], dtype=dtype)
    with pytest.raises(
        FloatingPointError, match=r"^rewards\[row 2, trajectory 2\] = .*rewards are far too large"
    ):
        flashreinforce_loss(*inputs)


def test_a_weight_that_overflows_on_policy_is_blamed_on_the_rewards():
    inputs = batch([[-0.5], [-0.5]], [[-0.5], [-0.5]], [1, 0], dtype=torch.float16)
    inputs = (*inputs[:2], torch.tensor([1e6, 0.0]), inputs[3])
    with pytest.raises(FloatingPointError, match=r"^rewards\[row 0, token 0, .* overflows torch\.float16"):
        flashreinforce_loss(*inputs)


def test_the_limit_that_an_overflow_suggests_prevents_it():
    inputs = batch([[-0.5], [-0.5]], [[-13.0], [-0.5]], [1, 0], dtype=torch.float16)
    with pytest.raises(FloatingPointError, match=r"a limit such as 12\.4 clamps it"):
        flashreinforce_loss(*inputs, delta=math.inf)
    flashreinforce_loss(*inputs, delta=math.inf, log_ratio_limit=12.4)


def test_a_sum_that_overflows_is_refused_although_its_terms_are_finite():
    log_probs = [[-6.0], [-6.0], [-0.001]]
    inputs = batch(log_probs, log_probs, [1.5e38, 1.5e38, -3e38], dtype=torch.float32)
    with pytest.raises(
        FloatingPointError, match=r"the loss overflows torch\.float32 although every term is finite"
    ):
        flashreinforce_loss(*inputs)


def test_overflow_of_a_rejected_or_filtered_token_does_not_matter():
    inputs = batch([[HALF, -0.5], [HALF, HALF]], [[HALF, -500.0], [HALF, HALF]], [0, 1], dtype=torch.float32)
    rejected, _, stats = gradient_of(inputs, delta=1e-3)
    assert rejected == [[0, 0], [-0.125, -0.125]]
    assert stats["max_ratio"] == 1
    filtered, _, stats = gradient_of(
        inputs,
        delta=math.inf,
        negative_token_fraction=0.5,
        entropies=torch.tensor([[2.0, 1.0], [1.0, 1.0]]),
        failures=torch.tensor([True, False]),
    )
    assert filtered == [[0.125, 0], [-0.125, -0.125]]
    assert stats["max_ratio"] == 1


@pytest.mark.parametrize("ratio_gradient", ["detached", "through"])
def test_only_log_probs_receive_a_gradient(ratio_gradient):
    inputs = [
        value.detach().requires_grad_() if value.is_floating_point() else value
        for value in two_trajectories()
    ]
    loss, stats = flashreinforce_loss(*inputs, delta=math.inf, ratio_gradient=ratio_gradient)
    loss.backward()
    assert inputs[0].grad is not None
    assert inputs[1].grad is None
    assert inputs[2].grad is None
    assert not any(value.requires_grad for value in stats.values())


def test_a_shard_divides_by_the_counts_of_its_batch():
    log_probs, behavior, rewards, mask = two_trajectories()
    totals = BatchTotals(trajectories=8, reward_mean=0.25, policy_tokens=30)
    gradient, _, stats = gradient_of((log_probs, behavior, rewards, mask), delta=math.inf, totals=totals)
    assert stats["advantages"].tolist() == [0.75, -0.25]
    assert gradient == [pytest.approx([-0.75 * 2 / 16, -0.75 / 16]), pytest.approx([0.25 * 0.5 / 8, 0])]


class _Synchronisations(TorchDispatchMode):
    """Counts the operations that make the host wait for an accelerator."""

    WAITING = ("_local_scalar_dense", "nonzero", "_unique2", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += any(name in str(function) for name in self.WAITING)
        return function(*args, **kwargs or {})


def test_a_sound_shard_synchronises_twice():
    """Once for all refusals together, once for overflow."""
    totals = BatchTotals(trajectories=2, reward_mean=0.5, policy_tokens=3)
    with _Synchronisations() as seen:
        flashreinforce_loss(*two_trajectories(), delta=math.inf, totals=totals)
    assert seen.count == 2
