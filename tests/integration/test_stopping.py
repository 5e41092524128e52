"""Stopping a run from outside: signals, and a learner that dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_helpers import RECIPE, metrics_of
from transformers import AutoModelForCausalLM

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_molt.py"


def launch(output: Path, *overrides: str) -> subprocess.Popen[str]:
    """A long run in a process group of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "unit")}
    sets = [word for override in ("train.updates=100000", *overrides) for word in ("--set", override)]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), "--recipe", str(RECIPE), "--output", str(output), *sets],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment,
    )


def start(output: Path, *overrides: str) -> subprocess.Popen[str]:
    """A long run, once its first updates are done."""
    process = launch(output, *overrides)
    metrics = output / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < 3):
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[0]
    return process


def members_of(group: int) -> list[int]:
    """Processes of a group that still run, zombies not counted."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(its_group) == group and state != "Z":
                found.append(int(entry.name))
    return found


def wait_until_gone(group: int, seconds: float = 20) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := members_of(group)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_update_saves_and_exits_with_130(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start(tmp_path / "run")
    os.killpg(process.pid, number)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "Traceback" not in text
    done = metrics_of(tmp_path / "run")[-1]["update"]
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoints" / f"update_{done:06d}")
    assert (tmp_path / "run" / "report.html").exists()
    assert wait_until_gone(process.pid) == []


def test_a_signal_while_the_learner_waits_does_not_wait_for_the_batch(tmp_path: Path) -> None:
    process = start(
        tmp_path / "run",
        "environment.name=toy_suite:ToySuite",
        "environment.options={behaviour: stalls}",
        "environment.step_timeout_s=3600",
        "warm_start.steps=0",
        "evaluation.size=0",
    )
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert wait_until_gone(process.pid) == []


def test_when_the_learner_is_killed_its_workers_end_too(tmp_path: Path) -> None:
    process = start(tmp_path / "run")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until_gone(process.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_update_leaves_no_trace(tmp_path: Path, number: signal.Signals) -> None:
    process = launch(tmp_path / "run", "warm_start.steps=100000")
    while not (tmp_path / "run" / "provenance.json").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    time.sleep(1.0)
    os.killpg(process.pid, number)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "nothing was trained yet" in text
    assert not (tmp_path / "run").exists()
    assert wait_until_gone(process.pid) == []
