"""Layouts and cases under which the Megatron learner must give the gradient of one process."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from cases import OBJECTIVES, SPECIAL, relative_error
from gloo_ranks import run_ranks
from megatron_case import batch_for, config, hf_model, megatron_learner

from flashreinforce_molt import TrajectoryBatch
from flashreinforce_molt.learners.megatron import MegatronLayout
from flashreinforce_molt.learners.torch_learner import TorchLearner


@dataclass(frozen=True)
class Case:
    objective: str
    micro_batch_size: int | None = None
    trajectories: int = len(SPECIAL)


CASES = {
    "method": Case("method"),
    "microbatches of 3": Case("method", 3),
    "microbatches of 1": Case("filter, through the ratio", 1),
    "filtered tokens": Case("filter"),
    "token-mean, token gate": Case("token-mean, token gate", 2),
    "a rank without trajectories": Case("filter", 1, trajectories=3),
}

SHARED = MegatronLayout(distributed_optimizer=False)
LAYOUTS = {
    # name: (model, layout, data-parallel ranks)
    "TP1": ("qwen2", SHARED, 1),
    "TP2": ("qwen2", replace(SHARED, tensor_parallel=2), 1),
    "TP4, per-token loss": ("qwen2", replace(SHARED, tensor_parallel=4, calculate_per_token_loss=True), 1),
    "TP2, llama": ("llama, tied", replace(SHARED, tensor_parallel=2), 1),
    "DP2": ("qwen2", SHARED, 2),
    "DP2, per-token loss": ("qwen2", replace(SHARED, calculate_per_token_loss=True), 2),
    "CP2": ("qwen2", replace(SHARED, context_parallel=2), 1),
    "CP2 x DP2, per-token loss": (
        "qwen2",
        replace(SHARED, context_parallel=2, calculate_per_token_loss=True),
        2,
    ),
    "PP2": ("qwen2, tied, odd vocabulary", replace(SHARED, pipeline_parallel=2), 1),
    "PP2 x DP2, per-token loss": (
        "qwen2, tied",
        replace(SHARED, pipeline_parallel=2, calculate_per_token_loss=True),
        2,
    ),
    "TP2 x DP2, padded vocabulary": ("qwen2, tied, odd vocabulary", replace(SHARED, tensor_parallel=2), 2),
    "TP2 + sequence parallel": ("qwen3", replace(SHARED, tensor_parallel=2, sequence_parallel=True), 1),
    "TP2 x CP2 + sequence parallel": (
        "qwen2, tied",
        replace(SHARED, tensor_parallel=2, context_parallel=2, sequence_parallel=True),
        1,
    ),
    "rows split, CP2": ("qwen2", replace(SHARED, context_parallel=2, rows_per_microbatch=2), 1),
    "rows split, PP2 x DP2": ("qwen3", replace(SHARED, pipeline_parallel=2, rows_per_microbatch=1), 2),
    "experts, one rank": ("qwen3_moe, softmax over all", SHARED, 1),
    "EP2": ("qwen3_moe", replace(SHARED, expert_parallel=2), 2),
    "EP2 x TP2 + sequence parallel": (
        "qwen3_moe",
        replace(SHARED, expert_parallel=2, tensor_parallel=2, sequence_parallel=True),
        1,
    ),
}


def measure(layout_name: str) -> dict[str, float]:
    """Case -> worst relative error of any parameter's gradient on any rank; the losses must agree too."""
    name, layout, data_parallel = LAYOUTS[layout_name]
    batch = batch_for(hf_model(name))
    world = layout.tensor_parallel * layout.context_parallel * layout.pipeline_parallel * data_parallel
    outcomes = run_ranks(world, _gradients, name, layout, batch)
    worst = {}
    for case_name, case in CASES.items():
        loss, expected = one_process(name, batch, case)
        for outcome in outcomes:
            found_loss, found = outcome[case_name]
            assert set(found) == set(expected)
            assert math.isclose(found_loss, loss, rel_tol=1e-5, abs_tol=1e-6), (case_name, found_loss, loss)
        worst[case_name] = max(
            relative_error(outcome[case_name][1][parameter], expected[parameter])
            for outcome in outcomes
            for parameter in expected
        )
    return worst


def one_process(name, batch, case):
    learner = TorchLearner(hf_model(name), config(OBJECTIVES[case.objective]))
    part = TrajectoryBatch(batch.trajectories[: case.trajectories])
    loss, _, _ = learner._backward(part, part.totals())
    return loss, {parameter: value.grad for parameter, value in learner.model.named_parameters()}


def _gradients(name, layout, batch):
    learner = megatron_learner(name, config(OBJECTIVES["method"]), layout)
    found = {}
    for case_name, case in CASES.items():
        learner.config = config(OBJECTIVES[case.objective], micro_batch_size=case.micro_batch_size)
        learner.settings = replace(learner.settings, objective=vars(learner.config.objective))
        part = TrajectoryBatch(batch.trajectories[: case.trajectories])
        report = learner.accumulate_gradient(part)
        gradients = learner.weights.export(lambda parameter: parameter.main_grad, torch.float32)
        found[case_name] = report.loss, {parameter: value.clone() for parameter, value in gradients}
    return found
