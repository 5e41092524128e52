"""Trajectories on disk: nothing lost, nothing damaged accepted."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from trajectory_examples import example

from flashreinforce_molt import Trajectory
from flashreinforce_molt.trajectory import load_trajectories, save_trajectories
from flashreinforce_molt.trajectory.storage import checksum


def assert_same(ours: Trajectory, theirs: Trajectory) -> None:
    for field in dataclasses.fields(Trajectory):
        one, other = getattr(ours, field.name), getattr(theirs, field.name)
        assert type(one) is type(other), field.name
        assert np.array_equal(one, other), field.name
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype


def rewritten(path, **changes):
    """The file of one example with some header fields or arrays replaced."""
    save_trajectories(path, [example()])
    with safe_open(path, "numpy") as file:
        header = file.metadata()
    arrays = load_file(path)
    for name, value in changes.items():
        (arrays if name in arrays else header)[name] = value
    arrays = {name: array for name, array in arrays.items() if array is not None}
    del header["sha256"]
    if "tokens" in arrays:
        header["sha256"] = checksum(header, arrays)  # what is false is truthfully signed
    save_file(arrays, path, header)
    return path


def test_everything_comes_back_to_the_last_bit(tmp_path):
    trajectories = [
        example(reward=0.1, info={"nan": 1e-300, "text": "\u00fc\n", "flag": False, "count": 10**18}),
        example(trajectory_id=2**60, failed=None, info={}, row_lengths=None),
        example(trajectory_id=9, reward=-1e30, failed=True),
    ]
    save_trajectories(tmp_path / "sample.safetensors", iter(trajectories))
    loaded = load_trajectories(tmp_path / "sample.safetensors")
    assert len(loaded) == len(trajectories)
    for ours, theirs in zip(trajectories, loaded, strict=True):
        assert_same(ours, theirs)


def test_no_trajectories_are_a_file_too(tmp_path):
    save_trajectories(tmp_path / "none", [])
    assert load_trajectories(tmp_path / "none") == []


def test_any_safetensors_reader_understands_the_file(tmp_path):
    save_trajectories(tmp_path / "sample", [example(), example(trajectory_id=8)])
    assert load_file(tmp_path / "sample")["tokens"].shape == (16,)
    with safe_open(tmp_path / "sample", "numpy") as file:
        assert [one["trajectory_id"] for one in json.loads(file.metadata()["trajectories"])] == [7, 8]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "sample"
    save_trajectories(path, [example()])

    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("flashreinforce_molt.trajectory.storage.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_trajectories(path, [example(trajectory_id=8)])
    assert [one.trajectory_id for one in load_trajectories(path)] == [7]
    assert list(tmp_path.iterdir()) == [path]


def test_a_truncated_file_is_refused_wherever_it_was_cut(tmp_path):
    path = tmp_path / "sample"
    save_trajectories(path, [example()])
    whole = path.read_bytes()
    for length in [0, 4, 8, 100, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=f"^{path}: "):
            load_trajectories(path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": "weights"}, "not a trajectory file .format 'weights'"),
        ({"version": "1"}, "version '1' of the format, this release reads '2'"),
        ({"trajectories": "{"}, "Expecting property name"),
        ({"trajectories": "[3]"}, r"damaged header \(AttributeError"),
        ({"trajectories": "7"}, "its records are 7, not a list"),
        ({"trajectories": "[" * 100_000}, r"damaged header \(RecursionError"),
        ({"trajectories": '[{"length": -2}]'}, "record 0 has length -2, not a number of tokens"),
        ({"trajectories": "[{}]"}, r"damaged header \(KeyError: 'length'\)"),
        ({"trajectories": "[]"}, "tokens holds 8 values, its records 0"),
        ({"policy_versions": np.zeros(9, np.int64)}, "policy_versions holds 9 values, its records 4"),
        (
            {"policy_versions": np.zeros(3, np.int64)},
            "trajectory 7: policy_versions has 3 values, expected 4",
        ),
        ({"behavior_log_probs": np.ones(4, np.float32)}, r"trajectory 7: behavior_log_probs \[0\] = 1"),
        ({"tokens": None}, "tokens"),
    ],
    ids=str,
)
def test_a_foreign_or_altered_file_is_refused_with_its_name_and_fault(tmp_path, changes, match):
    path = rewritten(tmp_path / "sample", **changes)
    with pytest.raises(ValueError, match=f"^{path}: .*{match}"):
        load_trajectories(path)


def test_weights_are_not_trajectories(tmp_path):
    save_file({"weight": np.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors: not a trajectory file"):
        load_trajectories(tmp_path / "model.safetensors")


def test_a_directory_is_named_and_called_one(tmp_path):
    with pytest.raises(IsADirectoryError, match=f"Is a directory.*{tmp_path}"):
        load_trajectories(tmp_path)


def test_a_device_is_named():
    with pytest.raises((OSError, ValueError), match="/dev/null"):
        load_trajectories("/dev/null")


def test_an_absent_file_is_absent(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_trajectories(tmp_path / "nothing")


def test_no_byte_of_a_file_can_change_unnoticed(tmp_path):
    path = tmp_path / "sample"
    save_trajectories(path, [example(), example(trajectory_id=8)])
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"^{path}: "):
            load_trajectories(path)


def test_an_array_that_nobody_asked_for_is_no_part_of_the_format(tmp_path):
    save_trajectories(tmp_path / "sample", [example()])
    with safe_open(tmp_path / "sample", "numpy") as file:
        header = file.metadata()
    save_file({**load_file(tmp_path / "sample"), "rewards": np.ones(3)}, tmp_path / "more", header)
    with pytest.raises(ValueError, match="more: the array 'rewards' is no part of the format"):
        load_trajectories(tmp_path / "more")
