"""`--engine megatron` from the command line: learner ranks on gloo, rollout workers, checkpoints, and dead ranks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("megatron.core")

from run_helpers import metrics_of, without_clock
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
THREE_LETTERS = {
    "dataset": "spell_backward",
    "parameters": {"min_word_len": 3, "max_word_len": 3},
    "template": "{word}>",
    "lowercase": True,
}
SHORT = (
    f"environment.options={json.dumps(THREE_LETTERS)}",
    "warm_start.steps=40",  # a few answers are right, so that there is a gradient from the first update on
    "warm_start.correct_fraction=1.0",
    "optim.warmup_fraction=0",
    "train.updates=4",
    "train.batch_size=16",
    "evaluation.size=16",
    "checkpoint.every=2",
    "engine.deterministic=true",  # every batch is sampled with the newest weights: lag 0
)


def launch(output: Path, engine: str, *words: str, sets: tuple[str, ...] = (), **environment: str):
    """The documented command, in a process group of its own; all its processes hold the other end of `stdout`."""
    command = [sys.executable, str(ROOT / "scripts" / "train_molt.py"), "--recipe", "quickstart"]
    command += ["--engine", engine, "--output", str(output), *words]
    command += [word for name in ("telemetry.live=never", *sets) for word in ("--set", name)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "ignore",
            "FLASHREINFORCE_RANK_SETUP": "cpu_megatron:on_cpu",
            **environment,
        },
    )


def end_of(process: subprocess.Popen[str], seconds: float) -> str:
    """What the run printed, once it and everything that it started have ended; nothing is left running."""
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def train(output: Path, engine: str, *words: str, sets: tuple[str, ...]) -> None:
    process = launch(output, engine, *words, sets=sets)
    text = end_of(process, seconds=300)
    assert process.returncode == 0, text


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with tensor parallel 2."""
    output = tmp_path_factory.mktemp("megatron") / "run"
    train(output, "megatron", sets=(*SHORT, "cluster.tensor_parallel=2"))
    return output


def assert_on_policy(lines) -> None:
    """The learner's log-probs are those that the workers sampled with, after weights that moved."""
    for line in lines:
        assert line["policy_lag_max"] == 0
        assert line["sequence_kl_max"] < 1e-6
        assert line["ratio_max"] == pytest.approx(1.0, abs=1e-4)
        assert line["grad_norm"] > 0.01


def test_a_run_with_two_ranks_writes_what_a_local_run_writes_and_workers_get_its_weights(
    two_ranks: Path, tmp_path: Path
) -> None:
    train(tmp_path / "local", "local", sets=SHORT)
    lines, local = metrics_of(two_ranks), metrics_of(tmp_path / "local")
    assert [line["update"] for line in lines] == [1, 2, 3, 4]
    assert [line["trajectories_total"] for line in lines] == [16, 32, 48, 64]
    assert [line.keys() for line in lines] == [line.keys() for line in local]
    assert_on_policy(lines)
    # the same weights sampled the same answers, and the same batch has the same gradient
    for name in ("reward_mean", "response_tokens_mean", "entropy_mean", "grad_norm", "lr"):
        assert lines[0][name] == pytest.approx(local[0][name], rel=1e-3)
    checkpoint = two_ranks / "checkpoints" / "update_000004"
    model, tokenizer = (kind.from_pretrained(checkpoint) for kind in (AutoModelForCausalLM, AutoTokenizer))
    assert model.config.vocab_size == len(tokenizer)


@pytest.mark.parametrize("tensor_parallel", [2, 1])
def test_a_resumed_run_goes_on_as_if_never_stopped_under_either_layout(
    two_ranks: Path, tmp_path: Path, tensor_parallel: int
) -> None:
    output = tmp_path / "run"
    shutil.copytree(two_ranks, output)
    shutil.rmtree(output / "checkpoints" / "update_000004")
    train(output, "megatron", "--resume", sets=(f"cluster.tensor_parallel={tensor_parallel}",))
    whole, lines = without_clock(metrics_of(two_ranks)), without_clock(metrics_of(output))
    assert lines[:2] == whole[:2]
    assert_on_policy(lines)
    for line, expected in zip(lines, whole, strict=True):
        for name in ("update", "trajectories_total", "reward_mean", "entropy_mean", "grad_norm", "lr"):
            assert line[name] == pytest.approx(expected[name], rel=1e-3)
    AutoModelForCausalLM.from_pretrained(output / "checkpoints" / "update_000004")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_learner_rank_ends_the_run_by_name(tmp_path: Path, rank: int) -> None:
    process = launch(
        tmp_path / "run",
        "megatron",
        sets=("cluster.tensor_parallel=2", "train.batch_size=16", "warm_start.steps=0", "evaluation.size=0"),
        FLASHREINFORCE_RANK_SETUP="cpu_megatron:on_cpu_with_pid_file",
        RANK_PID_FOLDER=str(tmp_path),
    )
    before = []
    for line in process.stdout:
        before.append(line)
        if line.startswith("update "):
            os.kill(int((tmp_path / f"rank_{rank}.pid").read_text()), signal.SIGKILL)
            break
    text = end_of(process, seconds=60)  # not one of its processes hangs
    assert process.returncode == 1, "".join(before) + text
    assert f"run failed: learner rank {rank} (pid " in text
    assert "was killed by SIGKILL" in text
