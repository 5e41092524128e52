"""The directory of a run: made safely, and an honest account of what ran in it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashreinforce_molt.config import Config
from flashreinforce_molt.telemetry import (
    RunDirectoryError,
    create_run_directory,
    discard_unstarted,
    record_resume,
    write_atomically,
    write_config,
    write_provenance,
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def careless_umask() -> Any:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("careless_umask")
def test_nobody_else_may_write_into_a_run(tmp_path: Path) -> None:
    run = create_run_directory(tmp_path / "runs" / "a")
    write_config(run, {"seed": 1})
    assert mode_of(run) == 0o700
    assert mode_of(run.parent) & stat.S_IWOTH == 0
    assert mode_of(run / "config.yaml") & (stat.S_IWOTH | stat.S_IWGRP) == 0


def test_an_existing_empty_directory_loses_write_permission_for_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    create_run_directory(tmp_path)
    assert mode_of(tmp_path) == 0o775


def test_a_directory_with_something_in_it_is_refused_with_both_fixes(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("x")
    with pytest.raises(RunDirectoryError, match=f"{tmp_path}.*another --output.*holds no checkpoint"):
        create_run_directory(tmp_path)
    (tmp_path / "checkpoints" / "update_000001").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=f"{tmp_path}.*another --output.*--resume"):
        create_run_directory(tmp_path)
    assert create_run_directory(tmp_path, resume=True) == tmp_path


def test_a_run_without_an_update_is_discarded_and_nothing_else_is(tmp_path: Path) -> None:
    run = create_run_directory(tmp_path / "run")
    write_config(run, {"seed": 1})
    (run / "metrics.jsonl").touch()
    (run / "events.out.tfevents.1").touch()
    assert discard_unstarted(run)
    assert not run.exists()
    foreign = create_run_directory(tmp_path / "foreign")
    (foreign / "notes.txt").write_text("mine")
    assert discard_unstarted(foreign)
    assert (foreign / "notes.txt").exists()
    begun = create_run_directory(tmp_path / "begun")
    (begun / "metrics.jsonl").write_text("{}")
    assert not discard_unstarted(begun)
    assert (begun / "metrics.jsonl").exists()


@pytest.mark.parametrize("exists", [True, False])
def test_there_must_be_something_to_resume(tmp_path: Path, exists: bool) -> None:
    run = tmp_path / "run"
    if exists:
        run.mkdir()
    with pytest.raises(RunDirectoryError, match="nothing to resume; leave out --resume"):
        create_run_directory(run, resume=True)
    assert run.exists() == exists


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunDirectoryError, match="another --output"):
            create_run_directory(path)


def test_an_interrupted_write_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    write_atomically(target, "old")

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_whole_configuration_comes_back_from_its_file(tmp_path: Path) -> None:
    config = Config()
    config.optim.lr = 1e-6
    config.environment.options = {"dataset": "spell_backward", "sizes": [3, 5], "text": "${not.resolved} <b>"}
    content = yaml.safe_load(write_config(tmp_path, config).read_text())
    assert content["optim"]["lr"] == 1e-6
    assert content["environment"]["options"] == config.environment.options
    assert content["rollout"]["max_new_tokens"] == 64
    assert next(iter(content)) == "seed"


def test_secrets_reach_neither_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "verysecretvalue")
    options = {"api_key": "key45678x", "url": "https://u:pass99@host/x", "note": "verysecretvalue"}
    config = Config()
    config.environment.options = options
    write_config(tmp_path, config)
    write_provenance(
        tmp_path,
        recipe="r1",
        settings={"environment.options": {"value": options, "source": "--set"}},
        command=["train", "--token", "key45678x", "--set", "environment.options.api_key=key45678x"],
        extra={"error": RuntimeError("verysecretvalue")},
    )
    for name in ("config.yaml", "provenance.json"):
        text = (tmp_path / name).read_text()
        for secret in ("key45678x", "pass99", "verysecretvalue"):
            assert secret not in text
    assert "max_new_tokens: 64" in (tmp_path / "config.yaml").read_text()


@dataclass
class OneSetting:
    value: Any
    source: str
    layer: str = field(default="--set")


def test_provenance_says_what_ran_with_what(tmp_path: Path) -> None:
    path = write_provenance(
        tmp_path,
        recipe="quickstart",
        variants=("a", "b"),
        engine="local",
        settings={"optim.lr": {"value": 1e-3, "source": "ours"}, "seed": OneSetting(3, "asked")},
        command=["python", "a b.py"],
    )
    content = json.loads(path.read_text())
    assert content["recipe"] == "quickstart"
    assert content["variants"] == ["a", "b"]
    assert content["settings"]["optim.lr"] == {"value": 1e-3, "source": "ours"}
    assert content["settings"]["seed"] == {"value": 3, "source": "asked", "layer": "--set"}
    assert content["command"] == "python 'a b.py'"
    assert content["python"] == sys.version.split()[0]
    assert content["versions"]["torch"]
    assert content["started"].endswith("+00:00")


def test_the_commit_is_that_of_the_checkout_the_package_runs_from(tmp_path: Path) -> None:
    checkout = Path(__file__).resolve().parents[2]
    git = json.loads(write_provenance(tmp_path, recipe=None).read_text())["git"]
    if not (checkout / ".git").exists():
        assert git is None
        return
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    assert git["commit"] == head.stdout.strip()
    assert isinstance(git["dirty"], bool)


def test_a_resume_is_added_and_the_beginning_stays(tmp_path: Path) -> None:
    write_provenance(tmp_path, recipe="quickstart", command=["first"])
    record_resume(tmp_path, 12, command=["second", "--token=key45678x"])
    record_resume(tmp_path, 20, command=["third"])
    content = json.loads((tmp_path / "provenance.json").read_text())
    assert content["command"] == "first"
    assert [(each["update"], each["command"]) for each in content["resumes"]] == [
        (12, "second '--token=[redacted]'"),
        (20, "third"),
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"resumes": 5}'])
def test_a_damaged_provenance_is_not_continued_silently(tmp_path: Path, text: str) -> None:
    with pytest.raises(RunDirectoryError, match="missing"):
        record_resume(tmp_path, 1)
    (tmp_path / "provenance.json").write_text(text)
    with pytest.raises(RunDirectoryError, match="damaged"):
        record_resume(tmp_path, 1)


def test_the_telemetry_package_loads_no_torch() -> None:
    program = (
        "import sys, flashreinforce_molt.telemetry as t; "
        "[getattr(t, name) for name in t.__all__]; "
        "sys.exit('torch' in sys.modules or 'tensorboard' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
