"""The same batch in another layout: same loss, same gradient, same decisions."""

from __future__ import annotations

import math

import pytest
import torch
from objective_oracle import Batch, random_batch

from flashreinforce_molt.objective import BatchTotals, flashreinforce_loss, merge_stats

OPTIONS = {
    "sequence gate": {"delta": 2e-2},
    "token gate through the ratio": {"delta": 2e-2, "gate": "token", "ratio_gradient": "through"},
    "failure filter": {"delta": 2e-2, "negative_token_fraction": 0.4},
    "token mean": {"delta": 2e-2, "aggregation": "token-mean", "log_ratio_limit": 0.3},
    "constant length": {"delta": 2e-2, "aggregation": "constant-length", "constant_length": 5},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
CLOSE = {"rtol": 1e-10, "atol": 1e-14}


def run(batch: Batch, options: dict, totals: BatchTotals | None = None):
    inputs = batch.inputs("entropies", "failures")
    log_probs = inputs.pop("log_probs").clone().requires_grad_()
    loss, stats = flashreinforce_loss(log_probs, **inputs, **options, totals=totals)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    return loss.detach(), gradient, stats


def with_columns(batch: Batch, columns) -> Batch:
    changed = {name: columns(value) if value.dim() == 2 else value for name, value in vars(batch).items()}
    return Batch(**changed)


@every_option
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e3, -1e30])
def test_junk_outside_policy_slots_changes_no_bit(options, junk):
    for seed in range(8):
        clean = random_batch(seed)
        for name in ("log_probs", "behavior_log_probs", "entropies"):
            setattr(clean, name, torch.where(clean.action_mask, getattr(clean, name), -0.5))
        dirty = Batch(**vars(clean))
        for name in ("log_probs", "behavior_log_probs", "entropies"):
            setattr(dirty, name, torch.where(clean.action_mask, getattr(clean, name), junk))

        (loss, gradient, stats), (dirty_loss, dirty_gradient, dirty_stats) = (
            run(clean, options),
            run(dirty, options),
        )

        assert torch.equal(loss, dirty_loss)
        assert torch.equal(gradient, dirty_gradient)
        assert (gradient[~clean.action_mask] == 0).all()
        assert stats.keys() == dirty_stats.keys()
        assert all(torch.equal(stats[name], dirty_stats[name]) for name in stats)


@every_option
def test_order_of_trajectories_does_not_matter(options):
    for seed in range(20):
        batch = random_batch(seed)
        # Rows of one trajectory keep their order, which decides ties of the failure filter.
        shuffled = batch.trajectory_ids.unique()[torch.randperm(batch.trajectory_ids.unique().numel())]
        order = torch.cat([(batch.trajectory_ids == owner).nonzero()[:, 0] for owner in shuffled])
        loss, gradient, _ = run(batch, options)
        other_loss, other_gradient, other_stats = run(batch.rows(order), options)
        torch.testing.assert_close(other_loss, loss, **CLOSE)
        torch.testing.assert_close(other_gradient, gradient[order], **CLOSE)
        assert other_stats["trajectory_ids"].tolist() == shuffled.tolist()


@every_option
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_does_not_matter(options, side):
    for seed in range(20):
        batch = random_batch(seed)

        def pad(values):
            parts = [values, values.new_zeros(len(values), 4)]
            return torch.cat(parts if side == "right" else parts[::-1], dim=1)

        loss, gradient, _ = run(batch, options)
        padded_loss, padded_gradient, _ = run(with_columns(batch, pad), options)
        torch.testing.assert_close(padded_loss, loss, **CLOSE)
        torch.testing.assert_close(padded_gradient, pad(gradient), **CLOSE)


@every_option
def test_cutting_every_trajectory_into_one_row_per_token_does_not_matter(options):
    for seed in range(20):
        batch = random_batch(seed)
        tokens = batch.log_probs.shape[1]
        cut = Batch(
            **{
                name: value.reshape(-1, 1) if value.dim() == 2 else value.repeat_interleave(tokens)
                for name, value in vars(batch).items()
            }
        )
        loss, gradient, stats = run(batch, options)
        cut_loss, cut_gradient, cut_stats = run(cut, options)
        torch.testing.assert_close(cut_loss, loss, **CLOSE)
        torch.testing.assert_close(cut_gradient.view_as(gradient), gradient, **CLOSE)
        torch.testing.assert_close(cut_stats, stats, **CLOSE)


@every_option
def test_shards_with_the_totals_of_their_batch_add_up_to_it(options):
    for seed in range(30):
        batch = random_batch(seed)
        totals = BatchTotals.count(batch.rewards, batch.action_mask, batch.trajectory_ids)
        shard_of = dict(
            zip(batch.trajectory_ids.unique().tolist(), torch.randint(0, 3, (6,)).tolist(), strict=False)
        )
        of_row = torch.tensor([shard_of[owner] for owner in batch.trajectory_ids.tolist()])
        loss, gradient, stats = run(batch, options)

        summed, assembled, shard_stats = torch.zeros_like(loss), torch.zeros_like(gradient), []
        for shard in of_row.unique():
            rows = (of_row == shard).nonzero()[:, 0]
            shard_loss, assembled[rows], one = run(batch.rows(rows), options, totals)
            summed += shard_loss
            shard_stats.append(one)

        torch.testing.assert_close(summed, loss, **CLOSE)
        torch.testing.assert_close(assembled, gradient, **CLOSE)
        merged = merge_stats(shard_stats)
        assert merged.keys() == stats.keys()
        there = torch.cat(
            [(merged["trajectory_ids"] == owner).nonzero()[0] for owner in stats["trajectory_ids"]]
        )
        for name, value in stats.items():
            torch.testing.assert_close(merged[name][there] if value.dim() else merged[name], value, **CLOSE)


def test_totals_counted_on_each_rank_combine_to_those_of_the_batch():
    for seed in range(20):
        batch = random_batch(seed)
        owners = batch.trajectory_ids.unique()
        ranks = [batch.rows((batch.trajectory_ids == owner).nonzero()[:, 0]) for owner in owners]
        whole, *parts = (
            BatchTotals.count(part.rewards, part.action_mask, part.trajectory_ids) for part in (batch, *ranks)
        )
        combined = BatchTotals.combine(parts)
        assert (combined.trajectories, combined.policy_tokens) == (whole.trajectories, whole.policy_tokens)
        assert combined.reward_mean == pytest.approx(whole.reward_mean, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_follows_float64(dtype):
    tolerance = 16 * torch.finfo(dtype).eps
    for seed in range(20):
        exact = random_batch(seed)
        for name in ("log_probs", "behavior_log_probs", "rewards"):
            setattr(exact, name, getattr(exact, name).to(dtype).double())
        rounded = Batch(**vars(exact))
        for name in ("log_probs", "behavior_log_probs", "rewards"):
            setattr(rounded, name, getattr(exact, name).to(dtype))
        options = {"delta": math.inf}
        loss, gradient, stats = run(exact, options)
        low_loss, low_gradient, low_stats = run(rounded, options)
        assert low_loss.dtype == low_stats["sequence_kl"].dtype == torch.float32
        assert low_gradient.dtype == dtype
        torch.testing.assert_close(low_loss.double(), loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(low_gradient.double(), gradient, rtol=tolerance, atol=tolerance / 100)
        torch.testing.assert_close(
            low_stats["sequence_kl"].double(), stats["sequence_kl"], rtol=1e-4, atol=1e-6
        )
