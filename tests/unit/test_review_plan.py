"""The resource plan and the lag expectation, by hand."""

from dataclasses import replace

import pytest
from published import review_of

from flashreinforce_molt.config.model_shapes import MODEL_SHAPES, shape_of
from flashreinforce_molt.review.lag import expected_lag
from flashreinforce_molt.review.plan import GIB, PlanRequest, make_plan

SMALL = MODEL_SHAPES["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"]
MOE = MODEL_SHAPES["Qwen/Qwen3-30B-A3B"]
REQUEST = PlanRequest(
    actor_gpus=4,
    tensor_parallel=1,
    context_parallel=1,
    expert_parallel=1,
    optimizer_offload=False,
    parameter_offload=False,
    micro_batch=1,
    batch_size=128,
    context_tokens=9216,
    new_tokens=8192,
    engines=4,
    engine_gpus=1,
    memory_share=0.9,
    in_flight=512,
    gpu_memory_gib=80.0,
)


@pytest.mark.parametrize("model", MODEL_SHAPES)
def test_the_formula_gives_the_published_number_of_parameters_exactly(model):
    shape = MODEL_SHAPES[model]
    assert shape.parameters == shape.published_parameters
    assert shape.source


def test_a_mixture_of_experts_uses_a_few_of_its_parameters_for_a_token():
    idle = 48 * (128 - 8) * 3 * 2048 * 768
    assert MOE.active_parameters == MOE.parameters - idle == 3_353_032_704


def test_the_learners_state_is_sixteen_bytes_for_each_parameter_over_its_gpus():
    assert dict(make_plan(SMALL, REQUEST).actor.parts)["weights, gradients, AdamW"] == 4 * SMALL.parameters
    halved = make_plan(SMALL, replace(REQUEST, optimizer_offload=True))
    assert dict(halved.actor.parts)["weights, gradients, AdamW"] == 2 * SMALL.parameters
    none = make_plan(SMALL, replace(REQUEST, parameter_offload=True))
    assert dict(none.actor.parts)["weights, gradients, AdamW"] == 0


def test_activations_are_one_saved_input_for_each_layer_and_one_layer_at_work():
    saved, inner = 2 * 9216 * 1536 * 28, 2 * 9216 * (8 * 1536 + 4 * 8960)
    assert dict(make_plan(SMALL, REQUEST).actor.parts)["activations"] == saved + inner
    without = make_plan(SMALL, replace(REQUEST, gradient_checkpointing=False))
    assert dict(without.actor.parts)["activations"] == saved + 28 * inner


def test_logits_of_one_microbatch_and_a_chunk_in_float32():
    wanted = 2 * 2 * 9216 * 151_936 + 2 * 4 * 256 * 151_936
    assert dict(make_plan(SMALL, REQUEST).actor.parts)["logits and log-probs"] == wanted


def test_the_kv_cache_gets_what_weights_and_work_leave():
    plan = make_plan(SMALL, REQUEST)
    per_token = 2 * 28 * 2 * 128 * 2
    left = int(80 * GIB * 0.9) - 2 * SMALL.parameters - 3 * GIB
    assert plan.kv_capacity_tokens == left // per_token
    assert plan.full_length_slots == plan.kv_capacity_tokens // 9216
    assert plan.in_flight_per_engine == 128
    assert not plan.waits


def test_tensor_parallel_engines_share_weights_and_key_value_heads():
    plan = make_plan(MOE, replace(REQUEST, engine_gpus=2))
    assert dict(plan.rollout.parts)["weights"] == MOE.parameters
    assert plan.kv_capacity_tokens == (int(72 * GIB) - MOE.parameters - 3 * GIB) // (
        MOE.kv_bytes_per_token // 2
    )
    eight = make_plan(MOE, replace(REQUEST, engine_gpus=8))  # only 4 heads can be shared out
    assert eight.kv_capacity_tokens == (int(72 * GIB) - MOE.parameters // 4 - 3 * GIB) // (
        MOE.kv_bytes_per_token // 4
    )


def test_expert_parallel_shrinks_the_gathered_layer():
    one, eight = (make_plan(MOE, replace(REQUEST, expert_parallel=size)) for size in (1, 8))
    saved = dict(one.actor.parts)["gathered layers"] - dict(eight.actor.parts)["gathered layers"]
    assert saved == 2 * 2 * (MOE.expert_parameters - MOE.expert_parameters // 8)


def test_tokens_of_an_update_are_bounded_by_the_limits():
    assert make_plan(SMALL, REQUEST).tokens_per_update_limit == 128 * 8192


def test_what_does_not_fit_is_said_with_its_numbers():
    plan = make_plan(MOE, replace(REQUEST, actor_gpus=4))
    assert not plan.fits
    assert "DOES NOT FIT" in plan.actor.text
    assert "113.7" in plan.actor.text
    errors = review_of("moe", "cluster.actor_nodes=1", "cluster.actor_gpus_per_node=4").errors
    assert [check.id for check in errors] == ["model-parallel", "memory"]
    assert errors[1].message.startswith("does not fit: a GPU of the learner needs ")
    assert "cluster.offload=optimizer" in errors[1].message


def test_an_estimate_that_is_too_large_only_warns():
    review = review_of("python_tools", "cluster.gpu_memory_gib=40")
    assert review.errors == ()
    assert [check.level for check in review.checks if check.id == "memory"] == ["warning"]


def test_more_in_flight_than_the_cache_holds_is_told():
    review = review_of("r1", "rollout.in_flight=2048")
    (warning,) = [check for check in review.checks if check.id == "kv-cache"]
    assert "512 trajectories are in flight in each engine" in warning.message


def test_the_pool_turns_over_and_the_queue_adds_its_depth():
    lag = expected_lag(in_flight=512, batch_size=128, queue_depth=8)
    assert (lag.low, lag.high) == (4.0, 12.0)
    assert (
        lag.text == "4 updates with an empty queue, 12 with a full one; the real lag is measured at run time"
    )


def test_a_bound_caps_and_a_synchronous_run_has_no_lag():
    assert expected_lag(in_flight=512, batch_size=128, queue_depth=8, bound=2).high == 2
    assert expected_lag(in_flight=512, batch_size=128, queue_depth=8, synchronous=True).high == 0
    assert "0 updates" in expected_lag(in_flight=8, batch_size=8, queue_depth=1, synchronous=True).text


def test_the_reports_of_the_published_runs_lie_between_the_bounds():
    r1, moe = review_of("r1").lag, review_of("moe").lag
    assert r1.low <= 4 <= r1.high
    assert moe.low <= 8 <= moe.high


def test_a_model_built_here_has_a_shape_and_an_unknown_one_none():
    config = review_of("quickstart").experiment.config.model.config
    shape = shape_of(None, config)
    assert shape is not None
    assert shape.parameters == pytest.approx(0.62e6, rel=0.1)
    assert shape_of("somebody/unknown", {}) is None
    assert shape_of(None, {"model_type": "qwen2"}) is None
    review = review_of("r1", "model.id=somebody/unknown")
    assert review.plan is None
