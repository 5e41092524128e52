"""Whole runs of the local engine: real worker processes, real weights, real files."""

import json
import shutil
from pathlib import Path

import pytest
from run_helpers import TOY, dumped_ids, metrics_of, run, weights_of, without_clock
from transformers import AutoModelForCausalLM, AutoTokenizer

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.rollout.pool import RolloutError
from flashreinforce_molt.telemetry import read_evaluations, read_metrics
from flashreinforce_molt.trajectory import load_trajectories

NO_EVALUATION = ("evaluation.size=0", "warm_start.steps=0")
DETERMINISTIC = ("engine.deterministic=true", *NO_EVALUATION)


def test_a_run_leaves_everything_that_the_contract_names(tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert run(output, "telemetry.dump_trajectories=2", "checkpoint.every=3") == 0
    lines = read_metrics(output / "metrics.jsonl").lines
    assert [line["update"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["trajectories_total"] for line in lines] == [8, 16, 24, 32, 40, 48]
    assert [line["update"] for line in read_evaluations(output / "evaluation.jsonl").lines] == [0, 6]
    assert list(output.glob("events.*"))
    assert "optim:" in (output / "config.yaml").read_text()
    provenance = json.loads((output / "provenance.json").read_text())
    assert provenance["settings"]["optim.lr"]["value"] == 0.01
    assert "<svg" in (output / "report.html").read_text()
    assert sorted(p.name for p in (output / "checkpoints").iterdir()) == ["update_000003", "update_000006"]
    model = AutoModelForCausalLM.from_pretrained(output / "checkpoints" / "update_000006")
    tokenizer = AutoTokenizer.from_pretrained(output / "checkpoints" / "update_000006")
    assert model.config.vocab_size == len(tokenizer)
    dumped = load_trajectories(output / "trajectories" / "update_000004.safetensors")
    assert len(dumped) == 2
    assert all(trajectory.policy_versions.max() <= 3 for trajectory in dumped)


def test_every_position_of_the_data_order_is_trained_at_most_once(tmp_path: Path) -> None:
    run(tmp_path / "run", "telemetry.dump_trajectories=8", "engine.workers=2", *NO_EVALUATION)
    ids = dumped_ids(tmp_path / "run")
    assert len(ids) == len(set(ids)) == 48


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_lag_bound_holds_and_its_parts_add_up(tmp_path: Path, limit: int) -> None:
    run(tmp_path / "run", f"rollout.max_policy_lag={limit}", "train.updates=10", *NO_EVALUATION)
    for line in metrics_of(tmp_path / "run"):
        assert line["policy_lag_max"] <= limit
        assert line["lag_in_flight"] + line["lag_in_queue"] == pytest.approx(line["policy_lag_mean"])


def test_without_a_bound_queue_and_slots_bound_what_waits(tmp_path: Path) -> None:
    run(
        tmp_path / "run",
        "rollout.max_policy_lag=null",
        "rollout.queue_depth=3",
        "train.updates=12",
        *NO_EVALUATION,
    )
    # 8 in flight and 3 batches of 8 that wait: nothing trained is older than 4 updates
    assert max(line["policy_lag_max"] for line in metrics_of(tmp_path / "run")) <= 4


def test_in_flight_publication_mixes_versions_and_draining_does_not(tmp_path: Path) -> None:
    versions = {}
    for publication in ("in_flight", "between_trajectories"):
        output = tmp_path / publication
        run(
            output,
            TOY,
            "environment.options={turns: 4, delay: 0.02}",
            "environment.max_turns=4",
            f"rollout.publication={publication}",
            "rollout.max_policy_lag=null",
            "rollout.in_flight=16",
            "train.updates=8",
            "telemetry.dump_trajectories=8",
            *NO_EVALUATION,
        )
        trajectories = [t for p in (output / "trajectories").iterdir() for t in load_trajectories(p)]
        versions[publication] = max(len(set(t.policy_versions.tolist())) for t in trajectories)
        assert all((t.policy_versions[1:] >= t.policy_versions[:-1]).all() for t in trajectories)
    assert versions["in_flight"] > 1
    assert versions["between_trajectories"] == 1


def test_a_synchronous_run_is_exactly_on_policy(tmp_path: Path) -> None:
    run(tmp_path / "run", "engine.mode=sync", *NO_EVALUATION)
    for line in metrics_of(tmp_path / "run"):
        assert line["policy_lag_max"] == 0
        assert line["sequence_kl_max"] < 1e-6
        assert line["ratio_max"] == pytest.approx(1.0, abs=1e-4)


def test_deterministic_runs_of_a_seed_are_bit_identical_and_other_seeds_differ(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(
            tmp_path / name,
            f"seed={seed}",
            "warm_start.steps=2",
            "evaluation.size=0",
            "engine.deterministic=true",
        )
    a, b, c = (without_clock(metrics_of(tmp_path / name)) for name in "abc")
    assert a == b
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "b")
    assert a != c


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_microbatches_do_not_change_the_update(tmp_path: Path, micro_batch_size: int) -> None:
    for name, overrides in (("whole", []), ("split", [f"train.micro_batch_size={micro_batch_size}"])):
        run(tmp_path / name, "train.updates=2", *overrides, *DETERMINISTIC)
    for whole, split in zip(metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "split"), strict=True):
        for name in ("grad_norm", "sequence_kl_mean", "entropy_mean", "top_token_share"):
            assert split[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-7)
        assert split["reward_mean"] == whole["reward_mean"]


@pytest.mark.parametrize("cut", [2, 5])
def test_a_deterministic_run_resumed_is_the_uninterrupted_run(tmp_path: Path, cut: int) -> None:
    run(tmp_path / "whole", *DETERMINISTIC)
    output = tmp_path / "cut"
    run(output, "checkpoint.every=1", "checkpoint.keep=10", *DETERMINISTIC)
    for path in (output / "checkpoints").iterdir():
        if int(path.name[-6:]) > cut:
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
    run(output, *DETERMINISTIC, resume=True)
    assert without_clock(metrics_of(output)) == without_clock(metrics_of(tmp_path / "whole"))
    assert weights_of(output) == weights_of(tmp_path / "whole")


@pytest.mark.slow
def test_a_deterministic_run_may_stop_anywhere_also_in_the_middle_of_saving(tmp_path: Path) -> None:
    run(tmp_path / "whole", *DETERMINISTIC)
    run(tmp_path / "saved", "checkpoint.every=1", "checkpoint.keep=10", *DETERMINISTIC)
    for cut in range(1, 6):
        output = tmp_path / f"cut_{cut}"
        shutil.copytree(tmp_path / "saved", output)
        for path in (output / "checkpoints").iterdir():
            if int(path.name[-6:]) > cut + 1:
                shutil.rmtree(path)
        unfinished = output / "checkpoints" / f"update_{cut + 1:06d}"
        weights = (unfinished / "model.safetensors").read_bytes()
        (unfinished / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        if cut % 2:  # stopped before the rename; else the disk lost what was renamed
            (unfinished / "state.json").unlink()
            unfinished.rename(unfinished.with_name(f".{unfinished.name}.part"))
        run(output, *DETERMINISTIC, resume=True)
        assert without_clock(metrics_of(output)) == without_clock(metrics_of(tmp_path / "whole")), cut
        assert weights_of(output) == weights_of(tmp_path / "whole"), cut


def test_bfloat16_trains_with_float32_master_weights(tmp_path: Path) -> None:
    run(tmp_path / "run", "model.dtype=bfloat16", "optim.lr=1e-4", "engine.mode=sync", *NO_EVALUATION)
    lines = metrics_of(tmp_path / "run")
    assert len(lines) == 6
    # decoding with a cache and scoring in one pass round differently in bfloat16, by little
    assert max(line["sequence_kl_max"] for line in lines) < 1e-3


def test_dropped_trajectories_are_counted_by_reason_and_replaced(tmp_path: Path) -> None:
    run(tmp_path / "run", TOY, "environment.options={behaviour: every third raises}", *NO_EVALUATION)
    last = metrics_of(tmp_path / "run")[-1]
    assert last["trajectories_total"] == 48
    assert last["dropped_environment_error"] == last["dropped_total"] > 10


def test_a_lost_episode_is_played_again_as_often_as_is_asked(tmp_path: Path) -> None:
    flaky = f"environment.options={{behaviour: every third raises once, mark: {tmp_path / 'tried'}}}"
    settings = ("environment.max_retries=1", "telemetry.dump_trajectories=8", *NO_EVALUATION)
    run(tmp_path / "run", TOY, flaky, *settings)
    last = metrics_of(tmp_path / "run")[-1]
    assert last["dropped_total"] == 0
    assert last["retried"] >= 10
    trained = dumped_ids(tmp_path / "run")
    assert len(set(trained)) == len(trained) == 48
    assert sum(i % 3 == 2 for i in trained) > 10

    run(tmp_path / "other", TOY, "environment.options={behaviour: every third raises}", *settings)
    last = metrics_of(tmp_path / "other")[-1]
    assert last["dropped_environment_error"] == last["dropped_total"] > 10
    assert last["retried"] >= last["dropped_total"]


def test_an_environment_that_always_fails_stops_the_run_by_name(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=r"8 trajectories in a row .*KeyError: 'broken tool'"):
        run(tmp_path / "run", TOY, "environment.options={behaviour: raises}", *NO_EVALUATION)


def test_a_killed_worker_is_started_again_and_loses_no_trajectory(tmp_path: Path) -> None:
    once = tmp_path / "once"
    run(
        tmp_path / "run",
        TOY,
        f"environment.options={{behaviour: dies once, mark: {once}}}",
        "telemetry.dump_trajectories=8",
        "train.updates=12",
        *NO_EVALUATION,
    )
    assert once.exists()
    lines = metrics_of(tmp_path / "run")
    assert [line["update"] for line in lines] == list(range(1, 13))
    assert lines[-1]["worker_restarts"] == 1
    assert 1 <= lines[-1]["reissued"] <= 16 + 4
    assert lines[-1]["dropped_total"] == 0
    trained = dumped_ids(tmp_path / "run")
    assert len(trained) == len(set(trained)) == 12 * 8
    assert 30 in trained  # the one that killed its worker, played again


def test_workers_that_keep_dying_stop_the_run_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        RolloutError, match=r"worker worker-0 \(pid \d+\) was killed by SIGKILL with \d+ traj.*=1 are"
    ):
        run(
            tmp_path / "run",
            TOY,
            "environment.options={behaviour: dies}",
            "engine.max_worker_restarts=1",
            *NO_EVALUATION,
        )


def test_a_deterministic_run_is_resumed_and_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match="deterministic=true restarts none: go on with --resume"):
        run(tmp_path / "run", TOY, "environment.options={behaviour: dies}", *DETERMINISTIC, *NO_EVALUATION)


def test_an_unknown_environment_or_option_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nearest: reasoning_gym"):
        run(tmp_path / "run", "environment.name=reasoning_gim")
    with pytest.raises(SettingError, match="dataste"):
        run(tmp_path / "run", "environment.options={dataste: spell_backward}")
    assert not (tmp_path / "run").exists()


def test_a_suite_names_the_options_it_needs(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="reasoning_gym needs dataset"):
        run(tmp_path / "run", "environment.options={chat: true}")


def test_a_resume_with_another_method_is_refused_by_name(tmp_path: Path) -> None:
    run(tmp_path / "run", *DETERMINISTIC)
    with pytest.raises(SettingError, match=r"optim.lr=0.02 \(from --set\): this run began with 0.01"):
        run(tmp_path / "run", "optim.lr=0.02", *DETERMINISTIC, resume=True)
    assert len(metrics_of(tmp_path / "run")) == 6
    assert (
        run(tmp_path / "run", "checkpoint.keep=1", "telemetry.tensorboard=false", *DETERMINISTIC, resume=True)
        == 0
    )
