"""What the launch finds before anything starts; the start itself is tested in tests/integration/real_molt."""

import subprocess
import sys

import pytest

pytest.importorskip("molt", reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh")
pytest.importorskip("ray", reason="needs ray: scripts/setup_molt_cpu.sh")

from molt_command import molt_command

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.molt import launch
from flashreinforce_molt.molt.agent_settings import VARIABLE as AGENT
from flashreinforce_molt.molt.run_metrics import VARIABLE as RUN_DIR
from flashreinforce_molt.molt.run_metrics import RunMetrics, metrics_line
from flashreinforce_molt.telemetry import read_metrics


@pytest.fixture
def agent(tmp_path):
    path = tmp_path / "agent.py"
    path.write_text("")
    return path


def words_of(agent, **changes):
    return molt_command(
        {"train.agent_path": agent, **{name.replace("__", "."): value for name, value in changes.items()}}
    )


def test_a_correct_command_is_prepared(agent, capsys):
    args = launch.prepare(words_of(agent, rollout__vllm_generate_batch_size=2048))
    assert args.flash.delta == 3e-3
    assert "Molt: [Rollout] --rollout.vllm_generate_batch_size exceeds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rollout__top_p": 0.9}, "Molt refuses the command"),
        ({"fsdp__packing_samples": True, "fsdp__attn_implementation": "te"}, "--fsdp.packing_samples"),
        ({"actor__dual_clip": 2.0}, "the loss cannot be built: dual_clip is a PPO-only"),
        (
            {"flash__delta": -1, "algo__advantage__is_correction_threshold": -1},
            "the loss cannot be built: delta=-1",
        ),
        ({"flash__environment": "resoning_gym"}, "nearest: reasoning_gym"),
        ({"flash__environment": "reasoning_gym", "flash__environment_options": "{"}, "is no JSON"),
    ],
)
def test_what_would_fail_late_in_a_worker_is_refused_at_once(agent, changes, words, capsys):
    assert launch.main(words_of(agent, **changes)) == launch.BAD_INPUT
    assert words in capsys.readouterr().err


def test_a_missing_agent_file_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"--train.agent_path .*/gone.py is not a file"):
        launch.prepare(words_of(tmp_path / "gone.py"))


def test_a_changed_checkout_of_molt_is_refused(tmp_path, monkeypatch):
    package = tmp_path / "molt"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(launch, "molt_root", lambda: package)
    launch.refuse_changed_checkout()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    launch.refuse_changed_checkout()
    (package / "__init__.py").write_text("changed = 1\n")
    with pytest.raises(SettingError, match=r"differs from its commit \(M molt/__init__.py\)"):
        launch.refuse_changed_checkout()


def test_workers_are_told_of_agent_and_run_directory(agent, tmp_path):
    options = {
        "flash__environment": "reasoning_gym",
        "flash__environment_options": '{"dataset": "spell_backward"}',
    }
    words = words_of(agent, **options, ckpt__path=tmp_path / "run" / "checkpoints")
    args = launch.prepare(words)
    assert RUN_DIR not in launch.worker_environment(args)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    told = launch.worker_environment(args)
    assert told[RUN_DIR] == str(tmp_path / "run")
    assert '"environment": "reasoning_gym"' in told[AGENT]
    assert "NCCL_DEBUG" in told


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), launch.INTERRUPTED, "interrupted"),
        (RuntimeError("\n".join(f"line {i}" for i in range(40))), launch.FAILED, "line 39"),
        (SettingError("node x cannot load the plugin"), launch.BAD_INPUT, "node x"),
    ],
)
def test_every_end_has_its_code_and_its_last_words(agent, monkeypatch, capsys, error, code, words):
    from contextlib import nullcontext

    monkeypatch.setattr(launch, "cluster", lambda environment: nullcontext())

    def fail(args):
        raise error

    monkeypatch.setattr(launch, "run", fail)
    assert launch.main(words_of(agent)) == code
    said = capsys.readouterr().err
    assert words in said
    assert "line 20" not in said


def test_the_module_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "flashreinforce_molt.molt.launch", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--flash.delta" in done.stdout


def test_molts_status_becomes_a_line_of_our_metrics(tmp_path):
    status = {
        "rollout/reward_mean": 0.25,
        "rollout/num_rollouts": 16.0,
        "rollout/dropped/total": 2.0,
        "flash/acceptance_rate": 0.9,
        "flash/policy_lag_max": 3.0,
        "flash/rejected_tokens": 12.0,
        "env_tool_calls": 1.5,
        "generated_samples": ["text", 1.0],
        "actor_grad_norm": float("nan"),
    }
    line = metrics_line(1, status, {}, 2.0)
    assert (line["reward_mean"], line["acceptance_rate"], line["policy_lag_max"]) == (0.25, 0.9, 3.0)
    assert (line["rejected_tokens"], line["tool_calls_mean"], line["grad_norm"]) == (12.0, 1.5, None)
    log = RunMetrics(tmp_path)
    log.append(1, status)
    log.append(2, status)
    lines = read_metrics(tmp_path / "metrics.jsonl").lines
    assert [line["trajectories_total"] for line in lines] == [16, 32]
    assert [line["dropped_total"] for line in lines] == [2, 4]


def test_a_resumed_run_continues_the_metrics_after_its_checkpoint(tmp_path):
    first = RunMetrics(tmp_path)
    for update in (1, 2, 3):
        first.append(update, {"rollout/num_rollouts": 16.0})
    RunMetrics(tmp_path).append(3, {"rollout/num_rollouts": 16.0})
    lines = read_metrics(tmp_path / "metrics.jsonl").lines
    assert [(line["update"], line["trajectories_total"]) for line in lines] == [(1, 16), (2, 32), (3, 48)]
