"""Whole runs with environments that have tools and own what their episodes share."""

import json
from pathlib import Path

import pytest
from run_helpers import metrics_of, run

from flashreinforce_molt.recipes import load_experiment
from flashreinforce_molt.rollout.episodes import ENDINGS
from flashreinforce_molt.rollout.pool import RolloutError
from flashreinforce_molt.telemetry import read_evaluations
from flashreinforce_molt.training import train

SHARED = ("environment.name=shared_suite:SharedSuite", "warm_start.steps=0")


def events_of(log: Path) -> list[str]:
    return log.read_text().split()


def test_every_process_opens_its_suite_once_and_closes_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    workers = ("engine.workers=2", "evaluation.size=0")
    assert run(tmp_path / "run", *SHARED, f"environment.options={{log: {log}}}", *workers) == 0
    assert sorted(events_of(log)) == ["close", "close", "open", "open"]


def test_an_evaluation_opens_the_learners_suite_for_itself(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(
        tmp_path / "run",
        *SHARED,
        f"environment.options={{log: {log}}}",
        "evaluation.size=4",
        "train.updates=2",
    )
    assert events_of(log)[:2] == ["open", "close"]  # before the worker begins
    assert events_of(log).count("open") == events_of(log).count("close") == 3


def test_a_suite_that_cannot_open_stops_the_run_by_name_and_is_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = f"environment.options={{log: {log}, fail: open}}"
    with pytest.raises(RolloutError, match=r"worker-0 failed:[\s\S]*OSError: no room for a sandbox"):
        run(tmp_path / "run", *SHARED, options, "evaluation.size=0")
    assert events_of(log) == ["open", "close"]


def test_lost_episodes_are_counted_under_their_reason_and_replaced(tmp_path: Path) -> None:
    options = f"environment.options={{log: {tmp_path / 'log'}, lost: 30}}"
    run(tmp_path / "run", *SHARED, options, "evaluation.size=0", "train.batch_size=40", "train.updates=2")
    last = metrics_of(tmp_path / "run")[-1]
    assert last["trajectories_total"] == 80
    assert last["dropped_grader_timeout"] == last["dropped_total"] >= 30


def demo(output: Path, *overrides: str) -> None:
    short = ["train.updates=3", "warm_start.steps=20", "evaluation.size=16", "telemetry.live=never"]
    experiment = load_experiment("tool_demo", overrides=[*short, "train.batch_size=16", *overrides])
    assert train(experiment, output) == 0


def test_the_calculator_demo_reports_its_calls_as_a_curve(tmp_path: Path) -> None:
    demo(tmp_path / "run", "engine.deterministic=true", "rollout.in_flight=16")
    for line in metrics_of(tmp_path / "run"):
        assert line["turns_mean"] >= line["tool_calls_mean"] + line["malformed_calls_mean"]
        assert line["response_tokens_mean"] <= 48
        endings = [line[f"ended_by_{reason}"] for reason in ENDINGS]
        assert sum(endings) == pytest.approx(line["truncated_fraction"])
    report = (tmp_path / "run" / "report.html").read_text()
    assert "tool_calls_mean" in report
    (first, last) = read_evaluations(tmp_path / "run" / "evaluation.jsonl").lines
    assert (first["lost"], last["lost"]) == ({}, {})


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose template shows tools."""
    from tiny_policy import save_tiny_policy

    folder = save_tiny_policy(tmp_path_factory.mktemp("model"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}" + settings["chat_template"]
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.slow
def test_the_python_tool_runs_on_the_local_engine_from_a_prepared_file(
    tmp_path: Path, chat_model: Path
) -> None:
    pytest.importorskip("math_verify", reason="needs the extra [tools]")
    from math_rows import write_rows

    assert (
        run(
            tmp_path / "run",
            *("environment.name=python_tool", "environment.options={}", "environment.max_turns=3"),
            f"data.path={write_rows(tmp_path / 'train.jsonl', range(20), tools=True)}",
            f"evaluation.suites.held_out.path={write_rows(tmp_path / 'test.jsonl', range(50, 60), tools=True)}",
            *("evaluation.suites.held_out.rows=10", "evaluation.size=4"),
            *(f"model.id={chat_model}", "model.config={}", "warm_start.steps=0", "train.updates=2"),
            *("rollout.max_context_tokens=512", "rollout.max_new_tokens=8"),
        )
        == 0
    )
    for line in metrics_of(tmp_path / "run"):
        assert line["no_answer_mean"] == 1.0  # a random model says nothing that could be graded
        assert {"tool_calls_mean", "tool_errors_mean", "malformed_calls_mean", "turns_mean"} <= line.keys()
        assert line["dropped_total"] == 0
