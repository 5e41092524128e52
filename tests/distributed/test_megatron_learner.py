"""The learner on real Megatron-Core, on gloo: weights, gradients and steps equal those of one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("megatron.core")

from cases import OBJECTIVES
from equivalence import CASES, LAYOUTS, measure
from gloo_ranks import run_ranks
from megatron_case import MODELS, batch_for, config, hf_model, megatron_learner

import flashreinforce_molt.learners.megatron.learner  # noqa: F401  # before the forks, which then need not import it
from flashreinforce_molt.config import SettingError
from flashreinforce_molt.learners.megatron import MegatronLayout
from flashreinforce_molt.learners.torch_learner import NonFiniteUpdateError, TorchLearner

pytestmark = pytest.mark.slow

ONE = MegatronLayout(distributed_optimizer=False)
TP2 = replace(ONE, tensor_parallel=2)


def world_of(layout, data_parallel):
    return layout.tensor_parallel * layout.context_parallel * layout.pipeline_parallel * data_parallel


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_gradient_of_one_process(layout):
    worst = measure(layout)
    assert set(worst) == set(CASES)
    assert max(worst.values()) < 5e-6, worst


@pytest.mark.parametrize(
    ("name", "layout", "data_parallel"),
    [
        ("qwen2", replace(TP2, tensor_parallel=4), 1),
        ("qwen2, tied, odd vocabulary", TP2, 2),
        ("qwen2, tied", replace(ONE, pipeline_parallel=2), 1),
        ("qwen3", TP2, 1),
        ("qwen3_moe", replace(ONE, expert_parallel=2, pipeline_parallel=2), 2),
    ],
)
def test_weights_come_back_bit_for_bit(name, layout, data_parallel):
    expected = dict(hf_model(name).named_parameters())
    for found in run_ranks(world_of(layout, data_parallel), round_trip, name, layout):
        assert list(found) == list(expected) or set(found) == set(expected)
        for parameter, value in expected.items():
            assert torch.equal(found[parameter], value), parameter


def round_trip(name, layout):
    learner = megatron_learner(name, config({}), layout)
    return {parameter: value.clone() for parameter, value in learner.export_weights()}


@pytest.mark.parametrize(
    "name",
    ["llama, tied", "qwen2, tied, odd vocabulary", "qwen3", "qwen3_moe", "qwen3_moe, softmax over all"],
)
def test_logits_equal_those_of_transformers(name):
    ids = torch.randint(0, 32, (3, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = hf_model(name)(ids).logits
    mixture = name.startswith("qwen3_moe")
    outcomes = run_ranks(2, logits_of, name, replace(TP2, sequence_parallel=mixture), ids)
    found = torch.cat(outcomes, -1)[..., : MODELS[name].vocab_size]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def logits_of(name, layout, ids):
    learner = megatron_learner(name, config({}), layout)
    with torch.no_grad():
        return learner.model(ids, torch.arange(ids.shape[1]).expand_as(ids), None)


STEPS = {"eps": 1e-4, "max_grad_norm": 0.3, "weight_decay": 0.1, "schedule": "cosine", "warmup_fraction": 0.2}
"""A large eps, because AdamW turns the rounding noise of gradients that are exactly 0 into whole steps."""


@pytest.mark.parametrize(
    ("name", "layout", "data_parallel"),
    [
        ("qwen2", TP2, 1),
        ("qwen2, tied", ONE, 2),
        ("qwen2, tied, odd vocabulary", replace(TP2, distributed_optimizer=True), 2),
        ("qwen2, tied", replace(ONE, pipeline_parallel=2, distributed_optimizer=True), 2),
        ("qwen3_moe", replace(ONE, expert_parallel=2, distributed_optimizer=True), 4),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_three_updates_equal_those_of_the_one_process_learner(name, layout, data_parallel):
    """Clipping (every norm is above the limit), weight decay of matrices only, warm-up, cosine, AdamW."""
    batch = batch_for(hf_model(name))
    reference = TorchLearner(hf_model(name), config(OBJECTIVES["filter"], **STEPS))
    expected = [reference.update(batch) for _ in range(3)]
    for results, weights in run_ranks(world_of(layout, data_parallel), three_updates, name, layout, batch):
        for found, wanted in zip(results, expected, strict=True):
            assert wanted.grad_norm > STEPS["max_grad_norm"]
            assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-4)
            assert found.loss == pytest.approx(wanted.loss, rel=1e-3, abs=1e-6)
            assert found.lr == wanted.lr
            assert found.entropy_mean == pytest.approx(wanted.entropy_mean, rel=1e-5)
            assert found.stats["acceptance_rate"].item() == wanted.stats["acceptance_rate"].item()
            assert int(found.stats["retained_tokens"]) == int(wanted.stats["retained_tokens"])
            torch.testing.assert_close(
                found.stats["sequence_kl"].sort()[0],
                wanted.stats["sequence_kl"].sort()[0],
                rtol=1e-3,
                atol=1e-5,
            )
        for parameter, value in reference.model.named_parameters():
            torch.testing.assert_close(
                weights[parameter], value.detach(), rtol=1e-4, atol=2e-5, msg=parameter
            )


def three_updates(name, layout, batch):
    learner = megatron_learner(name, config(OBJECTIVES["filter"], micro_batch_size=2, **STEPS), layout)
    results = [learner.update(batch) for _ in range(3)]
    return results, {parameter: value.clone() for parameter, value in learner.export_weights()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "distributed_optimizer", [False, True], ids=["shared nothing", "distributed optimizer"]
)
def test_a_run_resumes_on_another_layout_as_if_it_had_not_stopped(dtype, distributed_optimizer):
    """TP2 x DP2 stops after two updates; DP2, TP2 and PP2 go on with its tensors, as it would have itself."""
    name = "qwen2, tied, odd vocabulary"
    batch = batch_for(hf_model(name))
    first = replace(TP2, distributed_optimizer=distributed_optimizer)
    (weights, tensors, expected), *others = run_ranks(4, stop_and_go_on, name, first, batch, dtype)
    assert all(not kept for _, kept, _ in others), "only rank 0 keeps the optimizer's tensors"
    if dtype == "float32":
        assert_the_one_process_learner_has_the_same_state(name, batch, tensors)
    count = len(list(hf_model(name).parameters()))
    kinds = {"step", "exp_avg", "exp_avg_sq"} | ({"master"} if dtype == "bfloat16" else set())
    assert set(tensors) == {f"{kind}.{i}" for kind in kinds for i in range(count)}
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == "float32" else {"rtol": 2e-2, "atol": 1e-3}
    for layout, data_parallel in (
        (replace(ONE, distributed_optimizer=not distributed_optimizer), 2),
        (replace(TP2, distributed_optimizer=True), 1),
        (replace(ONE, pipeline_parallel=2, distributed_optimizer=True), 1),
    ):
        for found in run_ranks(
            world_of(layout, data_parallel), go_on, name, layout, batch, dtype, weights, tensors
        ):
            for parameter, value in expected.items():
                torch.testing.assert_close(found[parameter], value, **close, msg=parameter)


def assert_the_one_process_learner_has_the_same_state(name, batch, tensors):
    reference = TorchLearner(hf_model(name), config(OBJECTIVES["filter"], **STEPS))
    for _ in range(2):
        reference.update(batch)
    for i, parameter in enumerate(reference.parameters):
        for key, value in reference.optimizer.state[parameter].items():
            torch.testing.assert_close(tensors[f"{key}.{i}"], value, rtol=1e-3, atol=1e-6, msg=f"{key}.{i}")


def stop_and_go_on(name, layout, batch, dtype):
    learner = megatron_learner(name, config(OBJECTIVES["filter"], dtype=dtype, **STEPS), layout)
    for _ in range(2):
        learner.update(batch)
    weights = {parameter: value.clone() for parameter, value in learner.export_weights()}
    tensors = learner.optimizer_tensors()
    learner.update(batch)
    return weights, tensors, {parameter: value.clone() for parameter, value in learner.export_weights()}


def go_on(name, layout, batch, dtype, weights, tensors):
    model = hf_model(name)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.copy_(weights[parameter_name])
    learner = megatron_learner(name, config(OBJECTIVES["filter"], dtype=dtype, **STEPS), layout, model)
    learner.load_optimizer(tensors, updates_done=2)
    again = learner.optimizer_tensors()
    if dist.get_rank() == 0:
        assert set(again) == set(tensors)
        assert all(torch.equal(again[key], tensors[key]) for key in tensors), "loading lost a bit"
    learner.update(batch)
    return {parameter: value.clone() for parameter, value in learner.export_weights()}


def test_a_gradient_that_is_not_finite_is_refused_on_every_rank_and_changes_nothing():
    batch = batch_for(hf_model("qwen2"))
    for message, same, went_on in run_ranks(
        4, poisoned, "qwen2", replace(TP2, distributed_optimizer=True), batch
    ):
        assert "no step was taken" in message
        assert same
        assert went_on


def poisoned(name, layout, batch):
    learner = megatron_learner(name, config(OBJECTIVES["method"]), layout)
    before = {parameter: value.clone() for parameter, value in learner.export_weights()}
    accumulate = learner.accumulate_gradient

    def with_a_nan(given):
        report = accumulate(given)
        if dist.get_rank() == 1:
            next(iter(learner.weights.parameters.values())).main_grad[0, 0] = float("nan")
            for buffer in learner.model.buffers:
                buffer.grad_data.fill_(float("nan"))
        return report

    learner.accumulate_gradient = with_a_nan
    message = ""
    try:
        learner.update(batch)
    except NonFiniteUpdateError as error:
        message = str(error)
    same = all(torch.equal(value, before[parameter]) for parameter, value in learner.export_weights())
    learner.accumulate_gradient = accumulate
    return message, same and learner.updates_done == 0, learner.update(batch).grad_norm > 0


@pytest.mark.parametrize(
    ("name", "layout", "match"),
    [
        ("qwen2", replace(ONE, tensor_parallel=3), "tensor parallel 3 does not divide num_attention_heads=4"),
        (
            "qwen2",
            replace(ONE, pipeline_parallel=3),
            "pipeline parallel 3 does not divide num_hidden_layers=2",
        ),
        ("qwen2", replace(ONE, expert_parallel=2), "expert parallel 2 does not divide num_experts=None"),
        ("qwen3_moe", TP2, "needs sequence_parallel=True"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused_with_the_reason(name, layout, match):
    from flashreinforce_molt.learners.megatron.architecture import validate_architecture

    with pytest.raises(SettingError, match=match):
        validate_architecture(MODELS[name], layout)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "mistral"}, "model_type='mistral' has no Megatron mapping"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope_type='yarn'"),
    ],
)
def test_an_architecture_that_the_mapping_would_change_is_refused(change, match):
    import copy

    from flashreinforce_molt.learners.megatron.architecture import validate_architecture

    hf = copy.deepcopy(MODELS["qwen2"])
    for field, value in change.items():
        object.__setattr__(hf, field, value)
        hf.__dict__[field] = value
    if "model_type" in change:
        hf = type("Other", (), {"model_type": "mistral"})()
    with pytest.raises(SettingError, match=match):
        validate_architecture(hf, ONE)


def test_ranks_that_cannot_be_shared_out_are_refused():
    with pytest.raises(SettingError, match=r"3 learner ranks cannot be shared out by tensor parallel 2"):
        TP2.data_parallel(3)
