"""What a rollout must record, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle

import numpy as np
import pytest
import torch
from trajectory_examples import example, facts

from flashreinforce_molt import Trajectory

ARRAYS = {
    "tokens": np.int64,
    "action_mask": np.bool_,
    "behavior_log_probs": np.float32,
    "policy_versions": np.int64,
}


def test_arrays_of_the_caller_are_copied_and_stay_writable():
    given = {name: np.array(facts()[name], dtype=dtype) for name, dtype in ARRAYS.items()}
    trajectory = example(**given)
    for name, array in given.items():
        array[:] = 0
        assert getattr(trajectory, name).tolist() == facts()[name]


def test_arrays_are_converted_and_sealed():
    trajectory = example(
        tokens=np.array(facts()["tokens"], dtype=np.int16), action_mask=torch.tensor(facts()["action_mask"])
    )
    for name, dtype in ARRAYS.items():
        array = getattr(trajectory, name)
        assert array.dtype == dtype
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        trajectory.reward = 1.0


def test_a_pickled_trajectory_is_sealed_again():
    trajectory = pickle.loads(pickle.dumps(example()))
    assert trajectory.tokens.tolist() == facts()["tokens"]
    with pytest.raises(ValueError, match="read-only"):
        trajectory.behavior_log_probs[0] = 0


def test_info_cannot_be_changed_but_copied_and_written():
    given = {"turns": 3}
    trajectory = example(info=given)
    given["turns"] = 4
    for same in (
        trajectory,
        pickle.loads(pickle.dumps(trajectory)),
        copy.deepcopy(trajectory),
        dataclasses.replace(trajectory, reward=1.0),
    ):
        for change in (
            lambda info: info.update(turns=5),
            lambda info: info.__setitem__("turns", 5),
            lambda info: info.pop("turns"),
            lambda info: info.__ior__({"turns": 5}),
            lambda info: info.clear(),
        ):
            with pytest.raises(TypeError, match="read-only"):
                change(same.info)
        assert same.info == {"turns": 3}
        assert json.dumps(same.info) == '{"turns": 3}'
    assert dataclasses.asdict(trajectory)["info"] == {"turns": 3}


@pytest.mark.filterwarnings("error")
def test_tensors_of_any_float_and_with_gradient_are_taken_by_value():
    values = facts()["behavior_log_probs"]
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        tensor = torch.tensor(values, dtype=dtype, requires_grad=True)
        trajectory = example(behavior_log_probs=tensor)
        assert trajectory.behavior_log_probs.dtype == np.float32
        assert trajectory.behavior_log_probs.tolist() == values


def test_counts_turns_and_rows():
    trajectory = example()
    assert trajectory.policy_tokens == 4
    assert trajectory.turns == 3
    first, second = trajectory.rows()
    assert first.tokens.tolist() == [10, 11, 20, 21, 12, 22]
    assert first.behavior_log_probs.tolist() == [-0.5, -0.25, -1.0]
    assert second.tokens.tolist() == [13, 23]
    assert second.action_mask.tolist() == [False, True]
    assert second.behavior_log_probs.tolist() == [-2.0]
    assert second.policy_versions.tolist() == [5]


def test_one_row_is_the_default():
    trajectory = example(row_lengths=None)
    assert trajectory.lengths == (8,)
    assert [row.tokens.size for row in trajectory.rows()] == [8]


@pytest.mark.parametrize("field", ["behavior_log_probs", "policy_versions"])
def test_what_the_sampler_did_not_record_is_never_recomputed(field):
    left_out = facts()
    del left_out[field]
    for changed in (left_out, facts(**{field: None}), facts(**{field: [*facts()[field][:3], None]})):
        with pytest.raises(ValueError, match=f"^trajectory 7: {field} is missing: .*never recomputed"):
            Trajectory(**changed)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"trajectory_id": -1}, "trajectory -1: trajectory_id -1 is not a whole number"),
        ({"trajectory_id": "a"}, "trajectory 'a': trajectory_id 'a'"),
        ({"trajectory_id": True}, "trajectory True: trajectory_id True"),
        ({"prompt_id": 3}, "prompt_id 3 is not a string"),
        ({"finish_reason": None}, "finish_reason None is not a string"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": [1.5] * 8}, r"tokens must be one-dimensional integers, got float64 \[8\]"),
        ({"tokens": [[1] * 8]}, r"tokens must be one-dimensional integers, got int64 \[1, 8\]"),
        ({"tokens": [1, 2, 3, -4, 5, 6, 7, 8]}, r"tokens \[3\] = -4 is negative"),
        ({"action_mask": [True]}, "action_mask has 1 values, expected 8"),
        (
            {"action_mask": [0, 0, 1, 1, 0, 1, 0, 1]},
            "action_mask must be one-dimensional booleans, got int64",
        ),
        ({"action_mask": [False] * 8}, "action_mask has no policy token"),
        (
            {"action_mask": [True, *facts()["action_mask"][1:]]},
            r"action_mask \[0\] is the first token of a row",
        ),
        ({"row_lengths": (5, 3)}, r"action_mask \[5\] is the first token of a row"),
        ({"row_lengths": (6, 3)}, r"row_lengths \(6, 3\) are not positive parts of 8 tokens"),
        ({"row_lengths": 4}, "row_lengths 4 is not a sequence"),
        ({"row_lengths": (True, 7)}, r"row_lengths \(True, 7\)"),
        ({"tokens": [[1], [1, 2]]}, "tokens cannot be read as an array: "),
        (
            {"behavior_log_probs": torch.zeros(4, device="meta")},
            "behavior_log_probs cannot be read as an array: ",
        ),
        ({"behavior_log_probs": [-1, 1e-60, -1, -1]}, r"behavior_log_probs \[1\] = 1e-60 is not"),
        (
            {"behavior_log_probs": [-1, -1e300, -1, -1]},
            r"behavior_log_probs \[1\] = -1e\+300 is not finite and at most 0 in float32",
        ),
        ({"trajectory_id": 2**63}, rf"trajectory {2**63}: trajectory_id {2**63} is more than int64 holds"),
        ({"reward": 1e39}, r"reward 1e\+39 is not a finite number in float32"),
        ({"reward": 10**400}, r"reward 10+\.\.\. is not a finite number in float32"),
        ({"row_lengths": (8, 0)}, r"row_lengths \(8, 0\)"),
        ({"behavior_log_probs": [-1.0] * 3}, "behavior_log_probs has 3 values, expected 4"),
        ({"behavior_log_probs": [-1, math.nan, -1, -1]}, r"behavior_log_probs \[1\] = nan"),
        ({"behavior_log_probs": [-1, -1, -math.inf, -1]}, r"behavior_log_probs \[2\] = -inf"),
        (
            {"behavior_log_probs": [-1, -1, -1, 0.5]},
            r"behavior_log_probs \[3\] = 0.5 is not finite and at most 0",
        ),
        ({"behavior_log_probs": ["a"] * 4}, "behavior_log_probs must be one-dimensional numbers"),
        ({"policy_versions": [1] * 5}, "policy_versions has 5 values, expected 4"),
        ({"policy_versions": [1, -1, 1, 1]}, r"policy_versions \[1\] = -1 is negative"),
        ({"finished_version": 4}, r"finished_version 4 is older than policy_versions\[3\] = 5"),
        ({"finished_version": 6.0}, "finished_version 6.0 is not a whole number"),
        ({"reward": math.inf}, "reward inf is not a finite number"),
        ({"reward": True}, "reward True is not a finite number"),
        ({"reward": None}, "reward None is not a finite number"),
        ({"failed": 0}, "failed 0 is neither True, False nor None"),
        ({"info": {"turns": [1]}}, r"info \['turns'\] = \[1\] is not a number, text or flag"),
        ({"info": {1: 1}}, r"info \[1\] = 1"),
        ({"info": None}, "info None is not a mapping"),
    ],
    ids=lambda value: str(value)[:80],
)
@pytest.mark.filterwarnings("error")
def test_a_false_record_is_refused_with_trajectory_field_position_and_value(changes, match):
    with pytest.raises(ValueError, match=rf"^(trajectory 7: )?{match}"):
        example(**changes)


def test_numpy_scalars_are_stored_as_plain_values():
    trajectory = example(
        trajectory_id=np.int32(7), reward=np.float32(0.75), failed=np.bool_(True), info={"turns": np.int64(3)}
    )
    kinds = [type(value) for value in (trajectory.trajectory_id, trajectory.reward, trajectory.failed)]
    assert kinds == [int, float, bool]
    assert type(trajectory.info["turns"]) is int


def test_the_log_prob_of_a_certain_token_is_accepted():
    assert example(behavior_log_probs=[0, -0.0, -1, -1]).behavior_log_probs.tolist() == [0, 0, -1, -1]
