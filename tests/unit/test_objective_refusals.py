"""What the loss refuses, and how it says where."""

from __future__ import annotations

import math

import pytest
import torch

from flashreinforce_molt import BatchTotals, flashreinforce_loss


def sound() -> dict:
    """Three rows, two trajectories (ids 11 and 4); row 1, token 2 is not a policy token."""
    return {
        "log_probs": torch.full((3, 3), -1.0),
        "behavior_log_probs": torch.full((3, 3), -1.0),
        "rewards": torch.tensor([1.0, 1.0, 0.0]),
        "action_mask": torch.tensor([[False, True, True], [True, True, False], [True, True, True]]),
        "trajectory_ids": torch.tensor([11, 11, 4]),
    }


def filtering() -> dict:
    return {
        "negative_token_fraction": 0.5,
        "entropies": torch.ones(3, 3),
        "failures": torch.tensor([False, False, True]),
    }


def refused(match: str, **changes):
    with pytest.raises(ValueError, match=match):
        flashreinforce_loss(**sound() | changes)


def put(name: str, place, value, source=sound):
    changed = source()[name].clone()
    changed[place] = value
    return {name: changed}


def test_the_sound_batch_is_accepted():
    flashreinforce_loss(**sound() | filtering())


@pytest.mark.parametrize("field", ["log_probs", "behavior_log_probs"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [(math.nan, "nan"), (-math.inf, "-inf"), (math.inf, "inf"), (1e-7, r"1\.0*\d*e-07"), (0.5, "0.5")],
)
def test_a_log_prob_that_is_none_is_named_with_row_token_and_value(field, value, shown):
    refused(rf"^{field}\[row 1, token 1, trajectory 11\] = {shown}: .*at most 0", **put(field, (1, 1), value))
    flashreinforce_loss(**sound() | put(field, (1, 2), value))


def test_without_ids_the_row_names_the_trajectory():
    refused(
        r"^log_probs\[row 2, token 0, trajectory 2\]",
        **put("log_probs", (2, 0), math.nan),
        trajectory_ids=None,
    )


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_log_prob_of_a_certain_token_is_accepted(zero):
    _, stats = flashreinforce_loss(
        **sound() | put("log_probs", (1, 1), zero) | put("behavior_log_probs", (1, 1), zero)
    )
    assert stats["sequence_kl"].tolist() == [0, 0]


def test_the_first_of_several_faults_is_named():
    log_probs = sound()["log_probs"]
    log_probs[2, 1] = log_probs[1, 0] = math.nan
    refused(r"^log_probs\[row 1, token 0", log_probs=log_probs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named(value):
    refused(rf"^rewards\[row 2, trajectory 4\] = {value}", **put("rewards", 2, value))


def test_rows_of_one_trajectory_must_agree_on_reward_and_label():
    refused(r"^rewards\[row 1, trajectory 11\] = 0\.5: .*one reward", **put("rewards", 1, 0.5))
    refused(
        r"^failures\[row 1, trajectory 11\] = True: .*one label",
        **filtering() | put("failures", 1, True, filtering),
    )


def test_a_trajectory_without_policy_tokens_is_named_but_an_empty_row_is_fine():
    refused(r"^action_mask\[row 2, trajectory 4\] = 0: .*policy tokens", **put("action_mask", 2, False))
    flashreinforce_loss(**sound() | put("action_mask", 1, False))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_entropy_that_is_not_finite_is_named(value):
    refused(
        r"^entropies\[row 2, token 1, trajectory 4\]",
        **filtering() | put("entropies", (2, 1), value, filtering),
    )
    flashreinforce_loss(**sound() | filtering() | put("entropies", (1, 2), value, filtering))


@pytest.mark.parametrize("value", [-0.0625, -5.0])
def test_a_negative_entropy_is_named_but_not_the_rounding_of_a_certain_token(value):
    refused(
        rf"^entropies\[row 2, token 1, trajectory 4\] = {value}: .*0 or more",
        **filtering() | put("entropies", (2, 1), value, filtering),
    )
    flashreinforce_loss(**sound() | filtering() | put("entropies", (2, 1), -1e-6, filtering))


def test_a_reward_that_the_computing_dtype_cannot_hold_is_named():
    rewards = torch.tensor([1e308, 1e308, -1e308], dtype=torch.float64)
    refused(r"^rewards\[row 0, trajectory 11\] = 1e\+308: torch.float32 cannot hold it", rewards=rewards)


def test_what_the_filter_alone_reads_is_not_judged_without_it():
    unused = {"entropies": torch.full((3, 3), math.nan), "failures": torch.tensor([True, False, True])}
    flashreinforce_loss(**sound() | unused)


@pytest.mark.parametrize("missing", ["entropies", "failures"])
def test_the_filter_needs_entropies_and_labels(missing):
    refused(f"^{missing} are missing: negative_token_fraction < 1", **filtering() | {missing: None})


@pytest.mark.parametrize("field", [*sound(), "entropies", "failures"])
def test_wrong_shapes_dtypes_devices_and_types_are_named(field):
    tensor = (sound() | filtering())[field]
    wrong_dtype = tensor.to(torch.int8) if tensor.dtype == torch.bool else tensor.bool()
    shape = "log_probs" if field == "log_probs" else rf"^{field} has shape \[1, 3.*\], expected \[3"
    refused(shape, **filtering() | {field: tensor[None]})
    refused(f"^{field} has dtype {wrong_dtype.dtype}, expected", **filtering() | {field: wrong_dtype})
    device = "but log_probs on meta" if field == "log_probs" else f"^{field} is on meta, but log_probs on cpu"
    refused(device, **filtering() | {field: tensor.to("meta")})
    refused(f"^{field} must be a .*[tT]ensor.*list", **filtering() | {field: tensor.tolist()})


def test_integer_rewards_are_refused_instead_of_guessed_at():
    refused("^rewards has dtype torch.int64", rewards=torch.tensor([1, 1, 0]))


def test_an_empty_batch_is_refused():
    refused("^log_probs must be a non-empty", log_probs=torch.zeros(0, 3))


@pytest.mark.parametrize(
    "setting",
    [
        {"delta": -1e-9},
        {"delta": math.nan},
        {"delta": None},
        {"delta": True},
        {"negative_token_fraction": True},
        {"log_ratio_limit": True},
        {"importance_correction": "no"},
        {"importance_correction": 0},
        {"importance_correction": None},
        {"constant_length": True},
        {"constant_length": -1},
        {"aggregation": "constant-length", "constant_length": True},
        {"negative_token_fraction": 1.01},
        {"negative_token_fraction": -0.1},
        {"negative_token_fraction": math.nan},
        {"log_ratio_limit": 0},
        {"log_ratio_limit": -1.0},
        {"log_ratio_limit": math.inf},
        {"ratio_gradient": "both"},
        {"aggregation": "mean"},
        {"gate": "row"},
        {"aggregation": "constant-length", "constant_length": 0},
        {"aggregation": "constant-length", "constant_length": 1.5},
        {"aggregation": "constant-length"},
    ],
    ids=str,
)
def test_meaningless_settings_are_named_with_their_value(setting):
    field = (
        "constant_length"
        if "aggregation" in setting and setting["aggregation"] != "mean"
        else next(iter(setting))
    )
    refused(f"^{field}={setting.get(field)!r}", **setting)


@pytest.mark.parametrize(
    ("totals", "match"),
    [
        (
            BatchTotals(trajectories=1, reward_mean=0.5, policy_tokens=7),
            "totals.*trajectories=1.*less than this shard",
        ),
        (
            BatchTotals(trajectories=2, reward_mean=0.5, policy_tokens=6),
            "= 7: .*policy_tokens=6.*less than this shard",
        ),
        ({"trajectories": 2}, "totals must be BatchTotals, got dict"),
    ],
)
def test_totals_of_another_batch_are_refused(totals, match):
    refused(match, totals=totals)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"trajectories": 0}, "trajectories=0"),
        ({"reward_mean": math.nan}, "reward_mean=nan"),
        ({"policy_tokens": 1}, "policy_tokens=1"),
    ],
)
def test_impossible_totals_cannot_be_made(changes, match):
    with pytest.raises(ValueError, match=match):
        BatchTotals(**{"trajectories": 2, "reward_mean": 0.5, "policy_tokens": 7} | changes)
