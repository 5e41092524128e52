"""Nothing secret leaves a run, nothing of a model's runs here, and nobody else may change what a run wrote."""

from __future__ import annotations

import ast
import json
import os
import stat
from pathlib import Path

import pytest
from telemetry_example import example_evaluation, write_example_run
from test_checkpoint import batch_of, config_of
from tiny_engine import tiny_policy

import flashreinforce_molt
from flashreinforce_molt.checkpoint import RunState, save_checkpoint
from flashreinforce_molt.cli import main, train_main
from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.schema import Config
from flashreinforce_molt.data.command import main as prepare_main
from flashreinforce_molt.learners.torch_learner import TorchLearner
from flashreinforce_molt.recipes import load_experiment
from flashreinforce_molt.rollout.ledger import Ledger
from flashreinforce_molt.telemetry import LiveView, create_run_directory, write_report

SECRET = "hf_AbCdEfGh0123456789"
PLAIN = "s3cr3tValue"
"""A secret of no known shape: only the name before it, or the environment, tells."""


# -- the command line ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["--hf-token", PLAIN],
        [f"--hf-token={PLAIN}"],
        ["--api-key", f"two words {PLAIN}"],
        [f"WANDB_API_KEY={PLAIN}"],
        [SECRET],
        [f"https://user:{PLAIN}@host/x"],
    ],
    ids=["flag", "joined", "blanks", "assignment", "shape", "url"],
)
@pytest.mark.parametrize(
    "command",
    [
        lambda words: train_main(["--recipe", "quickstart", *words]),
        lambda words: main(["train", "--recipe", "quickstart", *words]),
        lambda words: main(["doctor", *words]),
        lambda words: prepare_main(["dapo", *words]),
    ],
    ids=["script", "train", "doctor", "prepare"],
)
def test_an_argument_that_nobody_knows_is_named_without_its_secret(command, words, capsys):
    with pytest.raises(SystemExit) as ended:
        command(words)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "unrecognized arguments: " in told
    assert PLAIN not in told
    assert SECRET not in told


def test_a_harmless_argument_that_nobody_knows_is_repeated_as_typed(capsys):
    with pytest.raises(SystemExit):
        train_main(["--max-tokens", "7", "--tokenizer=my own"])
    assert "unrecognized arguments: --max-tokens 7 '--tokenizer=my own'" in capsys.readouterr().err


def test_a_choice_that_is_none_shows_no_secret(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--engine", SECRET])
    assert "invalid choice: '[redacted]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [main, lambda words: prepare_main(["dapo", "--source", words[1]])])
def test_a_path_with_a_secret_in_it_is_named_without_it(command, capsys):
    assert command(["report", f"/nowhere/{SECRET}"]) == 2
    told = capsys.readouterr().err
    assert "/nowhere/[redacted]" in told


# -- what a run says and writes --------------------------------------------------------------------------------


def test_a_message_of_the_live_view_shows_no_secret(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("MY_API_KEY", PLAIN)
    with LiveView(
        3, recipe="quickstart", run_dir=tmp_path, engine="local", mode="sync", delta=3e-3, live=False
    ) as view:
        view.message(f"worker 1 ended: HTTPError 401 for https://host/v1?key={PLAIN}&max_tokens=7")
    told = "".join(capsys.readouterr())
    assert PLAIN not in told
    assert "max_tokens=7" in told


def test_neither_answers_nor_names_nor_notes_bring_a_secret_into_the_report(tmp_path):
    run = write_example_run(tmp_path / "run", updates=2)
    said = {
        "prompt": f"my key is {SECRET}",
        "response": f"https://u:{PLAIN}@host",
        "answer": "max_tokens=7",
        "score": 1,
    }
    (run / "evaluation.jsonl").write_text(json.dumps(example_evaluation(0, 0.5, examples=[said])) + "\n")
    provenance = json.loads((run / "provenance.json").read_text())
    provenance |= {"settings": {SECRET: {"value": 1, "source": "x"}}, "versions": {SECRET: "1"}}
    (run / "provenance.json").write_text(json.dumps(provenance))
    (run / "config.yaml").write_text(f"{{{SECRET}: [")
    text = write_report([run], tmp_path / "page.html").read_text()
    assert SECRET not in text
    assert PLAIN not in text
    assert "max_tokens=7" in text


def test_a_checkpoint_does_not_say_from_where_its_model_came(tmp_path):
    policy = tiny_policy()
    policy.model.config._name_or_path = policy.tokenizer.name_or_path = f"/models/{SECRET}"
    learner = TorchLearner(policy.model, config_of())
    learner.update(batch_of())
    path = save_checkpoint(tmp_path, policy, learner, RunState(1, 0, Ledger().state(), 0.0), [], keep=1)
    for file in path.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file.name


# -- code and rights -------------------------------------------------------------------------------------------


def test_code_of_a_model_is_off_until_asked_for_in_so_many_words_and_then_shown(capsys):
    assert Config().model.trust_remote_code is False
    for word in ("yes", "1", "on", "'true'"):
        with pytest.raises(SettingError, match=r"model\.trust_remote_code=.* must be true or false"):
            load_experiment("quickstart", overrides=[f"model.trust_remote_code={word}"])
    train_main(["--dry-run", "--recipe", "quickstart", "--set", "model.trust_remote_code=true"])
    assert "runs Python code of the model repository on this machine" in " ".join(
        capsys.readouterr().out.split()
    )


def test_nothing_that_the_package_loads_is_unpickled():
    """Only the grader's nursery unpickles, and only what its own parent sends through their pipe."""
    package = Path(flashreinforce_molt.__file__).parent
    forbidden = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    found = set()
    for path in package.rglob("*.py"):
        name = str(path.relative_to(package))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import) and forbidden & {
                alias.name.partition(".")[0] for alias in node.names
            }:
                found.add(name)
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in forbidden:
                found.add(name)
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in (
                    "torch.load",
                    "np.load",
                    "numpy.load",
                    "yaml.load",
                    "yaml.unsafe_load",
                ), name
                assert "allow_pickle" not in {word.arg for word in node.keywords}, name
    assert found == {"graders/nursery.py", "graders/pool.py"}


def test_nothing_of_a_run_is_for_everybody_to_change(tmp_path):
    """Whatever the shell's umask is; an existing directory may be one that others can enter."""
    before = os.umask(0)
    try:
        main(["train", "--list"])
        (tmp_path / "run").mkdir(0o777)
        run = create_run_directory(tmp_path / "run")
        policy = tiny_policy()
        state = RunState(1, 0, Ledger().state(), 0.0)
        save_checkpoint(
            run / "checkpoints", policy, TorchLearner(policy.model, config_of()), state, [], keep=1
        )
        write_example_run(run, updates=1)
        entries = [run, *run.rglob("*")]
        assert len(entries) > 8
        assert [str(entry) for entry in entries if entry.stat().st_mode & stat.S_IWOTH] == []
    finally:
        os.umask(before)
