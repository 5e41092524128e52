"""Padded left or right, packed, reordered or split: one batch, one gradient of a causal model's parameters."""

from __future__ import annotations

import pytest
import torch
from random_trajectories import random_trajectories

from flashreinforce_molt import BatchTotals, TrajectoryBatch, flashreinforce_loss
from flashreinforce_molt.logprobs import chosen_log_probs_and_entropy
from flashreinforce_molt.trajectory import PackedRows, PaddedRows

VOCABULARY, WIDTH = 20, 5
OPTIONS = {
    "the method": {},
    "token mean without gate": {"gate": "none", "aggregation": "token-mean"},
    "failure filter": {"negative_token_fraction": 0.3},
}


class CausalModel(torch.nn.Module):
    """One attention layer in float64; a token sees the tokens of its own row that stand before it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Parameter(torch.randn(VOCABULARY, WIDTH, dtype=torch.float64))
        self.positions = torch.nn.Parameter(torch.randn(16, WIDTH, dtype=torch.float64))
        self.head = torch.nn.Parameter(torch.randn(VOCABULARY, WIDTH, dtype=torch.float64) / WIDTH)

    def forward(self, input_ids, position_ids, visible):
        hidden = self.tokens[input_ids] + self.positions[position_ids]
        scores = (hidden @ hidden.mT / WIDTH).masked_fill(~visible, -1e4)
        return (scores.softmax(-1) @ hidden) @ self.head.T


def log_probs_and_entropies(model: CausalModel, rows: PaddedRows | PackedRows):
    size = rows.input_ids.shape[1]
    visible = torch.ones(size, size).tril().bool().expand(len(rows.input_ids), size, size)
    if isinstance(rows, PaddedRows):
        visible = visible & rows.attention_mask[:, None, :].bool()
    else:
        row = torch.bucketize(torch.arange(size), rows.cu_seqlens[1:], right=True)
        visible = visible & (row[:, None] == row[None, :])
    logits = model(rows.input_ids, rows.position_ids, visible)[:, :-1]
    aligned = chosen_log_probs_and_entropy(logits, rows.targets, with_entropy=True)
    return [rows.unpack(value) for value in aligned] if isinstance(rows, PackedRows) else aligned


def admitting_half(batch: TrajectoryBatch) -> float:
    """A delta between the drifts of the third and the fourth of six trajectories."""
    rows = batch.padded()
    log_probs, _ = log_probs_and_entropies(CausalModel(), rows)
    _, stats = flashreinforce_loss(log_probs, **rows.objective_inputs(), log_ratio_limit=30.0)
    return stats["sequence_kl"].sort().values[2:4].mean().item()


def loss_and_gradient(shards, totals, options):
    model, loss = CausalModel(), 0.0
    for rows in shards:
        log_probs, entropies = log_probs_and_entropies(model, rows)
        shard_loss, _ = flashreinforce_loss(
            log_probs,
            **rows.objective_inputs(),
            entropies=entropies,
            log_ratio_limit=30.0,
            **options,
            totals=totals,
        )
        shard_loss.backward()
        loss += shard_loss.item()
    return loss, [parameter.grad for parameter in model.parameters()]


LAYOUTS = {
    "left padded": lambda batch: [batch.padded(side="left", pad_token_id=3)],
    "other padding token": lambda batch: [batch.padded(pad_token_id=9)],
    "packed": lambda batch: [batch.packed()],
    "reversed": lambda batch: [TrajectoryBatch(reversed(batch.trajectories)).padded()],
    "microbatches of one": lambda batch: [shard.padded() for shard in batch.split(1)],
    "microbatches of four, left padded": lambda batch: [
        shard.padded(side="left") for shard in batch.split(4)
    ],
    "packed microbatches of two": lambda batch: [shard.packed() for shard in batch.split(2)],
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layout_changes_neither_loss_nor_gradient(layout, options):
    for seed in range(4):
        batch = TrajectoryBatch(random_trajectories(seed))
        settings = {"delta": admitting_half(batch)} | options
        loss, gradient = loss_and_gradient([batch.padded()], None, settings)
        other_loss, other_gradient = loss_and_gradient(layout(batch), batch.totals(), settings)
        assert other_loss == pytest.approx(loss, rel=1e-10)
        assert gradient[-1].abs().max() > 0
        torch.testing.assert_close(other_gradient, gradient, rtol=1e-9, atol=1e-12)


def test_totals_are_those_that_the_tensors_would_give():
    for seed in range(20):
        batch = TrajectoryBatch(random_trajectories(seed))
        rows = batch.padded()
        assert batch.totals() == BatchTotals.count(rows.rewards, rows.action_mask, rows.trajectory_ids)


def test_a_split_loses_and_repeats_no_trajectory():
    for seed, size in [(0, 1), (1, 4), (2, 5), (3, 100)]:
        batch = TrajectoryBatch(random_trajectories(seed))
        ids = [trajectory.trajectory_id for shard in batch.split(size) for trajectory in shard]
        assert sorted(ids) == sorted(trajectory.trajectory_id for trajectory in batch)
