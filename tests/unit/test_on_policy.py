"""The on-policy check: real models, really broken, and what it says of each."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_torch_learner import config_of
from tiny_engine import generation, tiny_generator, tiny_policy

from flashreinforce_molt.config import Config, EnvironmentConfig, RolloutConfig
from flashreinforce_molt.learners.torch_learner import TorchLearner
from flashreinforce_molt.models import Policy, rollout_model
from flashreinforce_molt.on_policy import (
    OnPolicyError,
    check_drift,
    check_log_probs,
    fresh_trajectories,
    full_support,
    sample_fresh,
)
from flashreinforce_molt.rollout.generator import SlotGenerator
from flashreinforce_molt.rollout.plan import worker_plans
from flashreinforce_molt.rollout.weights import WeightStore
from flashreinforce_molt.trajectory import Trajectory, TrajectoryBatch


def sampled(
    model: torch.nn.Module,
    *,
    temperature: float = 1.0,
    version: int = 0,
    spoil: Callable[[SlotGenerator], None] = lambda generator: None,
) -> list[Trajectory]:
    """Eight trajectories from the decoder that the workers use; `spoil` acts once each has its first token."""
    generator = tiny_generator(model, slots=8, temperature=temperature)
    generator.version = version
    running = [generation(i, [5 + i, 9, 12], 20) for i in range(8)]
    generator.join(running)
    ended = []
    while generator.active:
        for done in generator.step():
            generator.leave(done)
            ended.append(done)
        if all(each.log_probs for each in running):
            spoil(generator)
    return [
        Trajectory(
            trajectory_id=done.trajectory_id,
            prompt_id=f"p{done.trajectory_id}",
            tokens=done.tokens,
            action_mask=done.policy,
            behavior_log_probs=done.log_probs,
            policy_versions=done.versions,
            reward=float(done.trajectory_id % 2),
            finish_reason=done.end,
            finished_version=version,
        )
        for done in ended
    ]


def changed(trajectory: Trajectory, log_probs: np.ndarray) -> Trajectory:
    made = copy.copy(trajectory)
    object.__setattr__(made, "behavior_log_probs", log_probs.astype(np.float32))
    return made


def published(policy: Policy, dtype: str = "float32") -> torch.nn.Module:
    """What a worker holds after a publication."""
    store = WeightStore(policy.model)
    store.publish(policy.model, 0)
    model = rollout_model(policy.model.config, dtype, "cpu")
    store.read_into(model)
    return model


def check(policy: Policy, fresh: list[Trajectory], config: Config | None = None) -> str:
    config = config or config_of()
    return check_log_probs(TorchLearner(policy.model, config), fresh, config)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_published_weights_and_learner_agree_within_the_precision(dtype: str, temperature: float) -> None:
    policy = tiny_policy()
    policy.model.to(getattr(torch, dtype))
    fresh = sampled(published(policy, dtype), temperature=temperature)
    config = config_of(model__dtype=dtype, rollout__temperature=temperature, train__micro_batch_size=3)
    assert "on-policy check: log-probs of" in check(policy, fresh, config)


@pytest.mark.parametrize("factor", [0.9, 1.2])
def test_a_wrong_temperature_in_the_learner_is_refused_and_named(factor: float) -> None:
    policy = tiny_policy()
    fresh = sampled(published(policy), temperature=1.0)
    with pytest.raises(
        OnPolicyError, match=r"looks like a temperature: the recorded values fit (1|0\.99\d),"
    ) as told:
        check(policy, fresh, config_of(rollout__temperature=factor))
    assert f"rollout.temperature={factor:g}" in str(told.value)


@pytest.mark.parametrize(("by", "word"), [(1, "before"), (-1, "after")])
def test_recorded_log_probs_shifted_by_one_are_refused_and_named(by: int, word: str) -> None:
    policy = tiny_policy()
    fresh = [changed(t, np.roll(t.behavior_log_probs, by)) for t in sampled(published(policy))]
    with pytest.raises(OnPolicyError, match=f"shift by one: .* of the token {word}"):
        check(policy, fresh)


def test_a_constant_is_refused_and_named() -> None:
    policy = tiny_policy()
    fresh = [changed(t, t.behavior_log_probs - 0.25) for t in sampled(published(policy))]
    with pytest.raises(OnPolicyError, match=r"constant: the learner's values are \+0\.25 nats off"):
        check(policy, fresh)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tied_output_layer_that_was_not_published_is_refused(dtype: str) -> None:
    policy = tiny_policy()
    policy.model.to(getattr(torch, dtype))
    worker = published(policy, dtype)
    worker.lm_head.weight = torch.nn.Parameter(worker.lm_head.weight.detach().clone())  # type: ignore[union-attr]
    with torch.no_grad():
        policy.model.model.embed_tokens.weight.mul_(1.5)
        worker.model.embed_tokens.weight.copy_(
            policy.model.model.embed_tokens.weight
        )  # the head stays behind
    with pytest.raises(OnPolicyError, match=r"no shift, constant or temperature|like a temperature") as told:
        check(policy, sampled(worker), config_of(model__dtype=dtype))
    assert "nothing is trained" in str(told.value)


@torch.inference_mode()
def forget_keys(generator: SlotGenerator) -> None:
    for layer in generator.cache.layers:
        layer._keys.zero_()  # type: ignore[attr-defined]


def test_a_stale_cache_is_refused_and_the_first_tokens_are_said_to_agree() -> None:
    policy = tiny_policy()
    with pytest.raises(OnPolicyError, match="later ones do not: look at the cache and the positions"):
        check(policy, sampled(published(policy), spoil=forget_keys))


def test_the_refusal_lists_the_largest_differences_with_trajectory_and_token() -> None:
    policy = tiny_policy()
    fresh = sampled(published(policy))
    wrong = fresh[3].behavior_log_probs.copy()
    wrong[2] -= 7.0
    with pytest.raises(OnPolicyError) as told:
        check(policy, [*fresh[:3], changed(fresh[3], wrong), *fresh[4:]])
    lines = str(told.value).splitlines()
    first = lines[lines.index("The largest differences:") + 2].split()
    assert first[0] == str(fresh[3].trajectory_id)
    assert first[1] == str(np.flatnonzero(fresh[3].action_mask)[2])
    assert float(first[4]) == pytest.approx(7.0, abs=1e-3)
    assert lines[-1].endswith("--set train.check_on_policy=false")


def test_a_learner_without_log_probs_is_checked_by_the_drift_of_its_update() -> None:
    policy = tiny_policy()
    fresh = sampled(published(policy))
    config = config_of()
    good = TorchLearner(copy.deepcopy(policy.model), config).update(TrajectoryBatch(fresh))
    assert "the largest drift of 8 fresh trajectories" in check_drift(good, fresh, config)
    shifted = [changed(t, np.roll(t.behavior_log_probs, 1)) for t in fresh]
    bad = TorchLearner(policy.model, config).update(TrajectoryBatch(shifted))
    with pytest.raises(OnPolicyError, match="the first update is not used"):
        check_drift(bad, shifted, config)


def test_only_trajectories_of_one_version_that_this_process_sampled_are_fresh() -> None:
    trajectories = sampled(tiny_policy().model, version=3)
    mixed = copy.copy(trajectories[0])
    object.__setattr__(mixed, "policy_versions", np.r_[2, trajectories[0].policy_versions[1:]])
    batch = TrajectoryBatch([mixed, *trajectories[1:]])
    restored = {trajectories[1].trajectory_id}
    assert fresh_trajectories(batch, 3, restored) == trajectories[2:]
    assert fresh_trajectories(batch, 4) == []


def test_where_a_batch_has_no_fresh_trajectory_some_are_sampled_with_the_published_weights() -> None:
    policy = tiny_policy()
    store = WeightStore(policy.model)
    store.publish(policy.model, 5)
    config = Config(
        environment=EnvironmentConfig(name="toy_suite:ToySuite"),
        rollout=RolloutConfig(temperature=0.7, max_context_tokens=48, max_new_tokens=20),
    )
    old = TrajectoryBatch(sampled(tiny_policy(seed=1).model))
    fresh = sample_fresh(old, store, worker_plans(config, policy)[0], 5)
    assert fresh_trajectories(TrajectoryBatch(fresh), 5) == fresh
    check(policy, fresh, config)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(1.5)  # the learner has moved on, the store has not
    with pytest.raises(OnPolicyError):
        check(policy, fresh, config)


def test_truncated_sampling_is_not_checked() -> None:
    assert full_support(config_of())
    assert not full_support(config_of(rollout__top_p=0.9))
    assert not full_support(config_of(rollout__repetition_penalty=1.1))
