"""Runs whose numbers go wrong: refused before the first update, kept for replay, counted, said."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from run_helpers import RECIPE, metrics_of, run
from safetensors.torch import load_file
from transformers import PreTrainedModel

from flashreinforce_molt.learners import torch_learner
from flashreinforce_molt.learners.torch_learner import NonFiniteUpdateError
from flashreinforce_molt.on_policy import OnPolicyError
from flashreinforce_molt.recipes import load_experiment
from flashreinforce_molt.training import train
from flashreinforce_molt.trajectory import load_trajectories, save_trajectories

HUGE = "environment.name=huge_rewards:HugeRewards"
QUIET = (
    "evaluation.size=0",
    "warm_start.steps=0",
    "engine.deterministic=true",
    "telemetry.tensorboard=false",
)
SECOND_BATCH = (HUGE, "environment.options={first: 8, last: 15}", *QUIET)
ROOT = Path(__file__).parents[2]


def state_of(output: Path) -> dict:
    newest = sorted((output / "checkpoints").iterdir())[-1]
    return json.loads((newest / "state.json").read_text())


def test_a_run_says_that_rollout_and_learner_agree_before_its_first_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", "train.updates=2", "telemetry.live=never", *QUIET)
    told = capsys.readouterr().out
    assert told.count("on-policy check: log-probs of") == 1
    assert told.index("on-policy check") < told.index("update 1/2")


@pytest.mark.slow
def test_a_learner_that_scores_the_wrong_tokens_ends_the_run_with_code_1_and_no_traceback(
    tmp_path: Path,
) -> None:
    """A process of its own, whose learner reads every log-prob one slot too late."""
    program = (
        "import sys, flashreinforce_molt.learners.torch_learner as t\n"
        "right = t.score\n"
        "def late(model, rows, **options):\n"
        "    values, entropies = right(model, rows, **options)\n"
        "    mask = rows.action_mask\n"
        "    return values.clone().masked_scatter(mask, values[mask].roll(1)), entropies\n"
        "t.score = late\n"
        "from flashreinforce_molt.cli import train_main\n"
        "if __name__ == '__main__':\n"
        f"    sys.exit(train_main(['--recipe', {str(RECIPE)!r}, '--output', {str(tmp_path / 'run')!r},\n"
        "        '--set', 'evaluation.size=0', '--set', 'warm_start.steps=0', '--set', 'optim.lr=0.1']))\n"
    )
    script = tmp_path / "late.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=ROOT, timeout=200
    )
    assert done.returncode == 1, done.stderr
    assert "run failed: nothing is trained: log-probs of" in done.stderr
    assert "The largest differences:" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_is_checked_with_tokens_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ("evaluation.size=0", "warm_start.steps=0", "rollout.queue_depth=2", "rollout.max_policy_lag=null")
    run(tmp_path / "run", "train.updates=2", *sets)
    capsys.readouterr()

    def resumed(updates: int) -> int:
        experiment = load_experiment(str(RECIPE), overrides=(f"train.updates={updates}", *sets))
        return train(experiment, tmp_path / "run", resume=True, accept_changes=True)

    assert resumed(3) == 0
    assert capsys.readouterr().out.count("on-policy check: log-probs of") == 1
    right = torch_learner.score

    def warm(model: PreTrainedModel, rows: object, **options: object) -> object:
        return right(model, rows, **{**options, "temperature": 1.5})  # type: ignore[arg-type]

    monkeypatch.setattr(torch_learner, "score", warm)
    with pytest.raises(OnPolicyError, match="nothing is trained"):
        resumed(4)


def test_a_batch_that_is_not_finite_stops_the_run_and_is_kept_with_its_weights(tmp_path: Path) -> None:
    output = tmp_path / "run"
    with pytest.raises(NonFiniteUpdateError, match=r"update 2: loss .* no step was taken\. .*--replay-batch"):
        run(output, *SECOND_BATCH)
    assert [line["update"] for line in metrics_of(output)] == [1]
    kept = output / "nonfinite" / "update_000002"
    assert [t.trajectory_id for t in load_trajectories(kept / "batch.safetensors")] == list(range(8, 16))
    assert json.loads((kept / "update.json").read_text())["weights_version"] == 1
    saved, now = (
        load_file(path / "model.safetensors") for path in (kept, output / "checkpoints" / "update_000001")
    )
    assert all(torch.equal(saved[name], now[name]) for name in now)
    ledger = state_of(output)["ledger"]
    assert (ledger["trained_total"], ledger["dropped"], ledger["watermark"]) == (8, {"nonfinite": 8}, 16)


def test_a_resume_goes_on_behind_the_batch_that_stopped_the_run(tmp_path: Path) -> None:
    output = tmp_path / "run"
    with pytest.raises(NonFiniteUpdateError):
        run(output, HUGE, "environment.options={first: 0, last: 7}", *QUIET)  # before any update
    assert run(output, HUGE, "environment.options={first: 0, last: 7}", *QUIET, resume=True) == 0
    lines = metrics_of(output)
    assert [line["update"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {line["dropped_nonfinite"] for line in lines} == {8}
    assert {line["nonfinite_updates"] for line in lines} == {1}


@pytest.mark.parametrize("limit", ["1", "null"])
def test_batches_that_are_not_finite_are_skipped_and_counted_as_set(tmp_path: Path, limit: str) -> None:
    output = tmp_path / "run"
    assert run(output, f"train.max_nonfinite_updates={limit}", *SECOND_BATCH) == 0
    lines = metrics_of(output)
    assert [line["update"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["nonfinite_updates"] for line in lines] == [0, 1, 1, 1, 1, 1]
    assert lines[-1]["trajectories_total"] == 48
    assert lines[-1]["dropped_nonfinite"] == lines[-1]["dropped_total"] == 8
    assert max(line["policy_lag_max"] for line in lines) == 0
    ledger = state_of(output)["ledger"]
    assert (ledger["trained_total"], ledger["watermark"], ledger["above"]) == (48, 56, [])


def test_one_batch_more_than_allowed_stops_the_run(tmp_path: Path) -> None:
    output = tmp_path / "run"
    sets = (HUGE, "environment.options={first: 0}")
    with pytest.raises(NonFiniteUpdateError, match="max_nonfinite_updates=2 stops the run at number 3"):
        run(output, *sets, "train.max_nonfinite_updates=2", "checkpoint.keep=1", *QUIET)
    kept = sorted(path.name for path in (output / "nonfinite").iterdir())
    assert kept == ["update_000001", "update_000001_2", "update_000001_3"]
    with_weights = [path.parent.name for path in (output / "nonfinite").glob("*/model.safetensors")]
    assert with_weights == ["update_000001_3"]


def test_asynchronous_skips_leave_no_slot_and_no_lag_behind(tmp_path: Path) -> None:
    output = tmp_path / "run"
    sets = (HUGE, "environment.options={first: 8, last: 40}", "train.max_nonfinite_updates=null")
    assert run(output, *sets, "evaluation.size=0", "warm_start.steps=0", "train.updates=8") == 0
    last = metrics_of(output)[-1]
    assert last["trajectories_total"] == 64
    assert last["dropped_nonfinite"] >= 33
    assert max(line["policy_lag_max"] for line in metrics_of(output)) <= 2


def replay(path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "unit")}
    return subprocess.run(
        [sys.executable, "scripts/train_molt.py", "--recipe", str(RECIPE), "--replay-batch", str(path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=200,
    )


@pytest.mark.slow
def test_a_kept_batch_is_reproduced_word_for_word_and_a_finite_one_told_apart(tmp_path: Path) -> None:
    output = tmp_path / "run"
    with pytest.raises(NonFiniteUpdateError):
        run(output, *SECOND_BATCH)
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    path = output / "nonfinite" / "update_000002" / "batch.safetensors"
    done = replay(path)
    said = json.loads((path.parent / "update.json").read_text())["error"]
    assert done.returncode == 1, done.stderr
    assert f"reproduced: {said}" in done.stdout
    assert "gradient norm" in said
    assert before == {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    save_trajectories(path, [replace(t, reward=float(t.reward > 0)) for t in load_trajectories(path)])
    finite = replay(path)
    assert (finite.returncode, "finite: loss" in finite.stdout) == (0, True), finite.stdout + finite.stderr
    (path.parent / "model.safetensors").unlink()
    gone = replay(path)
    assert gone.returncode == 2
    assert "no longer holds the weights of version 1" in gone.stderr


def test_ratios_of_exactly_1_under_older_weights_raise_an_alarm_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mistake itself: what the learner computes takes the place of what the sampler recorded."""
    right = torch_learner.flashreinforce_loss

    def recomputing(
        log_probs: torch.Tensor, behavior_log_probs: torch.Tensor, *args: object, **options: object
    ):  # type: ignore[no-untyped-def]
        return right(log_probs, log_probs.detach(), *args, **options)  # type: ignore[arg-type]

    sets = ("evaluation.size=0", "warm_start.steps=0", "rollout.queue_depth=2")
    run(tmp_path / "honest", *sets)
    lines = metrics_of(tmp_path / "honest")
    assert max(line["policy_lag_max"] for line in lines) > 0
    assert all(line["ratio_alarm"] == 0 for line in lines)
    assert "WARNING" not in capsys.readouterr().out
    monkeypatch.setattr(torch_learner, "flashreinforce_loss", recomputing)
    run(tmp_path / "wrong", *sets)
    lines = metrics_of(tmp_path / "wrong")
    assert [line["ratio_alarm"] for line in lines] == [int(line["policy_lag_max"] > 0) for line in lines]
    assert np.sum([line["ratio_alarm"] for line in lines]) > 1
    assert capsys.readouterr().out.count("every importance ratio is exactly 1") == 1
