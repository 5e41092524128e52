"""Checkpoints: complete or absent, verified, and passed over when damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_torch_learner import batch_of, config_of
from tiny_engine import tiny_policy

from flashreinforce_molt.checkpoint import CheckpointError, RunState, newest_checkpoint, save_checkpoint
from flashreinforce_molt.config import ModelConfig
from flashreinforce_molt.learners.torch_learner import TorchLearner
from flashreinforce_molt.models import load_policy
from flashreinforce_molt.rollout.ledger import Ledger


def saved(directory: Path, update: int, *, dtype: torch.dtype = torch.float32, keep: int = 5):  # type: ignore[no-untyped-def]
    policy = tiny_policy()
    policy.model.to(dtype)
    learner = TorchLearner(policy.model, config_of())
    for seed in range(update):
        learner.update(batch_of(seed=seed))
    state = RunState(update, 99, Ledger().state(), 12.5)
    path = save_checkpoint(directory, policy, learner, state, batch_of().trajectories[:2], keep=keep)
    return policy, learner, path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_learner_takes_bit_for_bit_the_same_next_step(tmp_path: Path, dtype: torch.dtype) -> None:
    policy, learner, path = saved(tmp_path, 2, dtype=dtype)
    checkpoint = newest_checkpoint(tmp_path, print)
    assert (checkpoint.path, checkpoint.state.update, checkpoint.state.position) == (path, 2, 99)
    copy = load_policy(path, ModelConfig(dtype=str(dtype).partition(".")[2]))
    restored = TorchLearner(copy.model, config_of())
    checkpoint.restore(restored)
    for each in (learner, restored):
        each.update(batch_of(seed=7))
    for mine, theirs in zip(restored.masters, learner.masters, strict=True):
        assert torch.equal(mine, theirs)
    assert copy.model.lm_head.weight is copy.model.model.embed_tokens.weight
    waiting = checkpoint.waiting()
    assert [t.trajectory_id for t in waiting] == [0, 1]
    assert np.array_equal(waiting[1].tokens, batch_of().trajectories[1].tokens)
    assert copy.tokenizer.get_vocab() == policy.tokenizer.get_vocab()


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for update in (1, 2, 3):
        saved(tmp_path, update, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update_000002", "update_000003"]


@pytest.mark.parametrize(
    "file", ["model.safetensors", "learner.safetensors", "waiting.safetensors", "state.json"]
)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_said_and_passed_over(tmp_path: Path, file: str, damage: str) -> None:
    saved(tmp_path, 1)
    saved(tmp_path, 2)
    target = tmp_path / "update_000002" / file
    data = bytearray(target.read_bytes())
    if damage == "remove":
        target.unlink()
    else:
        data[len(data) // 2] ^= 255
        target.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    said: list[str] = []
    assert newest_checkpoint(tmp_path, said.append).state.update == 1
    assert "update_000002" in said[0]
    assert "trying the one before" in said[0]


def test_an_unfinished_write_is_no_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    unfinished = tmp_path / ".update_000002.part"
    unfinished.mkdir()
    (unfinished / "state.json").write_text("{}")
    assert newest_checkpoint(tmp_path, print).state.update == 1


def test_a_failed_write_leaves_the_old_checkpoint_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1)

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flashreinforce_molt.checkpoint.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        saved(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["update_000001"]


def test_no_usable_checkpoint_is_an_error_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        newest_checkpoint(tmp_path, print)


def test_another_format_is_refused(tmp_path: Path) -> None:
    _, _, path = saved(tmp_path, 1)
    content = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**content, "format": 99}))
    said: list[str] = []
    with pytest.raises(CheckpointError):
        newest_checkpoint(tmp_path, said.append)
    assert "format 99" in said[0]
