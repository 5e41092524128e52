"""Padded and packed tensors of a batch."""

from __future__ import annotations

import pytest
import torch
from trajectory_examples import example, facts

from flashreinforce_molt import TrajectoryBatch, flashreinforce_loss

BATCH = TrajectoryBatch(
    [
        example(),
        example(
            trajectory_id=8,
            tokens=[14, 24, 25],
            action_mask=[False, True, True],
            behavior_log_probs=[-3.0, -4.0],
            policy_versions=[6, 6],
            reward=0.0,
            failed=True,
            row_lengths=None,
        ),
    ]
)


def test_right_padding_aligns_each_slot_with_the_token_it_predicts():
    rows = BATCH.padded(pad_token_id=99)
    assert rows.input_ids.tolist() == [
        [10, 11, 20, 21, 12, 22],
        [13, 23, 99, 99, 99, 99],
        [14, 24, 25, 99, 99, 99],
    ]
    assert rows.attention_mask.tolist() == [[1] * 6, [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 4, 5], [0, 1, 0, 0, 0, 0], [0, 1, 2, 0, 0, 0]]
    assert rows.targets[rows.action_mask].tolist() == [20, 21, 22, 23, 24, 25]
    assert rows.action_mask.int().tolist() == [[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert rows.behavior_log_probs.tolist() == [[0, -0.5, -0.25, 0, -1], [-2, 0, 0, 0, 0], [-3, -4, 0, 0, 0]]
    assert rows.rewards.tolist() == [0.75, 0.75, 0.0]
    assert rows.failures.tolist() == [False, False, True]
    assert rows.trajectory_ids.tolist() == [7, 7, 8]


def test_left_padding_moves_rows_to_the_end():
    rows = BATCH.padded(side="left", pad_token_id=99)
    assert rows.input_ids.tolist() == [
        [10, 11, 20, 21, 12, 22],
        [99, 99, 99, 99, 13, 23],
        [99, 99, 99, 14, 24, 25],
    ]
    assert rows.attention_mask.tolist() == [[1] * 6, [0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 1, 2]]
    assert rows.targets[rows.action_mask].tolist() == [20, 21, 22, 23, 24, 25]
    assert rows.behavior_log_probs.tolist() == [[0, -0.5, -0.25, 0, -1], [0, 0, 0, 0, -2], [0, 0, 0, -3, -4]]


def test_packing_restarts_positions_and_spans_no_boundary():
    rows = BATCH.packed()
    assert rows.input_ids.tolist() == [[*facts()["tokens"], 14, 24, 25]]
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2]]
    assert rows.cu_seqlens.tolist() == [0, 6, 8, 11]
    assert rows.cu_seqlens.dtype == torch.int32
    assert rows.max_seqlen == 6
    assert rows.targets[rows.action_mask].tolist() == [20, 21, 22, 23, 24, 25]
    assert not rows.action_mask[0, [5, 7]].any()
    assert rows.behavior_log_probs[rows.action_mask].tolist() == [-0.5, -0.25, -1, -2, -3, -4]


def test_unpacking_gives_the_right_padded_rows():
    packed, padded = BATCH.packed(), BATCH.padded()
    assert torch.equal(packed.unpack(packed.behavior_log_probs), padded.behavior_log_probs)
    assert torch.equal(packed.unpack(packed.action_mask), padded.action_mask)
    inside = padded.attention_mask[:, 1:].bool()
    assert torch.equal(packed.unpack(packed.targets)[inside], padded.targets[inside])


def test_unpacking_sends_each_gradient_back_to_its_slot():
    packed = BATCH.packed()
    values = torch.zeros(1, 10, requires_grad=True)
    (packed.unpack(values) * torch.arange(15.0).view(3, 5)).sum().backward()
    assert values.grad.tolist() == [[0, 1, 2, 3, 4, 0, 5, 0, 10, 11]]  # 0 at both boundaries


def test_rows_without_labels_have_no_failures():
    batch = TrajectoryBatch([example(failed=None)])
    assert batch.padded().failures is None
    assert batch.packed().failures is None
    flashreinforce_loss(batch.padded().behavior_log_probs, **batch.padded().objective_inputs())


def test_an_unknown_side_is_refused():
    with pytest.raises(ValueError, match="side='middle'"):
        BATCH.padded(side="middle")


@pytest.mark.parametrize("view", ["padded", "packed"])
def test_a_view_moves_to_a_device_with_all_its_tensors(view):
    rows = getattr(BATCH, view)().to("meta")
    tensors = [value for value in vars(rows).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 8
    assert {value.device.type for value in tensors} == {"meta"}
