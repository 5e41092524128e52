"""The Megatron learner behind the run: ranks in their own processes, weights in shared memory, faults by name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

pytest.importorskip("megatron.core")

from cases import OBJECTIVES
from megatron_case import batch_for, config, hf_model

from flashreinforce_molt.config import ClusterConfig, Config, EngineConfig, SettingError
from flashreinforce_molt.learners.megatron import (
    LearnerError,
    MegatronLayout,
    MegatronTeam,
    learner_layout,
)
from flashreinforce_molt.learners.torch_learner import TorchLearner
from flashreinforce_molt.models import Policy

pytestmark = pytest.mark.slow

NAME = "qwen2, tied, odd vocabulary"
STEPS = {"eps": 1e-4, "max_grad_norm": 0.3}


@pytest.fixture
def team_environment(monkeypatch):
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FLASHREINFORCE_RANK_SETUP", "cpu_megatron:on_cpu")


def start(model):
    settings = config(OBJECTIVES["filter"], micro_batch_size=3, **STEPS)
    return MegatronTeam(Policy(model, tokenizer=None), settings, MegatronLayout(tensor_parallel=2), 2)


def assert_same_weights(found, expected):
    for (name, value), (_, wanted) in zip(found.named_parameters(), expected.named_parameters(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=2e-5, msg=name)


def test_a_team_trains_the_run_s_model_in_place_stops_resumes_and_names_a_dead_rank(team_environment):
    """One test for one team: starting two processes takes most of the time."""
    batch = batch_for(hf_model(NAME))
    reference = TorchLearner(hf_model(NAME), config(OBJECTIVES["filter"], **STEPS))
    expected = [reference.update(batch) for _ in range(3)]

    model = hf_model(NAME)
    with start(model) as team:
        results = [team.update(batch) for _ in range(2)]
        tensors = team.state_tensors()
        assert team.updates_done == 2
    for found, wanted in zip(results, expected, strict=False):
        assert found.loss == pytest.approx(wanted.loss, rel=1e-3, abs=1e-6)
        assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-4)
        assert set(found.stats) == set(wanted.stats)

    with start(model) as team:  # the stopped team's weights are still in the model
        team.load_state(tensors, updates_done=2)
        team.update(batch)
        assert team.updates_done == 3
        assert_same_weights(model, reference.model)

        with pytest.raises(ValueError, match="several steps"):
            team.load_state(tensors | {"step.0": torch.tensor(9.0)}, updates_done=2)
        assert team.updates_done == 3
        team.update(batch)  # a refusal ends nothing

        os.kill(team._ranks[1].pid, signal.SIGKILL)
        team._ranks[1].join()
        with pytest.raises(LearnerError, match=r"learner rank 1 \(pid \d+\) was killed by SIGKILL"):
            team.update(batch)
        processes = team._ranks
    assert not any(process.is_alive() for process in processes)


def test_a_rank_that_cannot_start_ends_the_team_with_its_traceback(team_environment, monkeypatch):
    monkeypatch.setenv("FLASHREINFORCE_RANK_SETUP", "cpu_megatron:nothing_of_this_name")
    with pytest.raises(
        LearnerError, match=r"(?s)learner rank [01].*(nothing_of_this_name|ended with code 1)"
    ):
        start(hf_model(NAME))


@pytest.mark.parametrize(
    ("cluster", "device", "layout", "ranks"),
    [
        ({"tensor_parallel": 2}, "cpu", (2, 1, 1), 2),
        ({"tensor_parallel": 2, "actor_gpus_per_node": 8}, "cuda", (2, 1, 1), 8),
        ({"tensor_parallel": 2, "context_parallel": 2, "actor_gpus_per_node": 8}, "cpu", (2, 2, 1), 4),
        ({"expert_parallel": 4}, "cpu", (1, 1, 4), 4),
    ],
)
def test_the_cluster_settings_say_how_many_ranks_there_are(cluster, device, layout, ranks):
    settings = Config(cluster=ClusterConfig(**cluster), engine=EngineConfig(device=device))
    found, count = learner_layout(settings)
    assert (found.tensor_parallel, found.context_parallel, found.expert_parallel) == layout
    assert count == ranks


def test_more_machines_or_odd_numbers_of_gpus_are_refused_with_the_fix():
    with pytest.raises(SettingError, match=r"cluster.actor_nodes=2.*one machine"):
        learner_layout(Config(cluster=ClusterConfig(actor_nodes=2)))
    odd = Config(
        cluster=ClusterConfig(tensor_parallel=2, actor_gpus_per_node=3), engine=EngineConfig(device="cuda")
    )
    with pytest.raises(SettingError, match="use a multiple of 2"):
        learner_layout(odd)
