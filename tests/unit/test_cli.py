"""The command line: options, exit codes, and what is said without a recipe."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from flashreinforce_molt.cli import main, train_main
from flashreinforce_molt.config.locks import PACKAGES, lock
from flashreinforce_molt.doctor import Machine, checks
from flashreinforce_molt.doctor import command as doctor_command
from flashreinforce_molt.recipes import available_recipes

ROOT = Path(__file__).resolve().parents[2]


def test_a_dry_run_without_a_recipe_shows_r1(capsys):
    assert train_main(["--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("r1 on molt  (dry run: nothing was started)")


def test_review_is_the_same_as_a_dry_run(capsys):
    assert main(["review", "--recipe", "moe", "--format", "json"]) == 0
    one = capsys.readouterr().out
    assert train_main(["--dry-run", "--recipe", "moe", "--format", "json"]) == 0
    assert capsys.readouterr().out == one


@pytest.mark.parametrize(
    "words",
    [
        ["--dry-run", "--recipe", "nowhere"],
        ["--dry-run", "--set", "rollout.top_p=0.9"],
        ["--dry-run", "--variant", "nothing"],
        ["--dry-run", "--engine", "megatron"],
        ["--diff", ":"],
        ["--recipe", "quickstart", "--engine", "molt"],
        ["--recipe", "quickstart", "--set", "seed=x"],
        [],
    ],
)
def test_bad_input_is_code_2_and_never_a_traceback(words, capsys):
    assert train_main(words) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert "error" in captured.out + captured.err


def test_without_a_recipe_the_list_says_what_runs_here(capsys):
    assert train_main([]) == 2
    captured = capsys.readouterr()
    assert all(name in captured.out for name in available_recipes())
    assert "quickstart runs on this machine without a GPU" in captured.err


def test_the_list_is_no_mistake(capsys):
    assert train_main(["--list"]) == 0
    assert "gate_5e3" in capsys.readouterr().out


def test_a_launcher_has_its_recipe_fixed_and_its_own_help(capsys):
    assert train_main(["--dry-run", "--format", "json"], recipe="moe") == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == "moe"
    with pytest.raises(SystemExit):
        train_main(["--recipe", "r1"], recipe="moe")
    with pytest.raises(SystemExit):
        train_main(["--help"], recipe="moe", description="Needs 24 GPUs.")
    assert "Needs 24 GPUs." in capsys.readouterr().out


def test_a_molt_recipe_on_this_machine_ends_with_everything_that_is_missing(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert train_main(["--recipe", "r1"]) == 2
    said = capsys.readouterr().err
    assert "problems:" in said
    assert "holds no config.json; hf download deepseek-ai" in said
    assert not (tmp_path / "runs").exists()


def test_the_doctor_tells_everything_and_fails(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--recipe", "r1", "--format", "json"]) == 2
    found = json.loads(capsys.readouterr().out)["checks"]
    assert {"python", "packages", "gpus", "model", "data"} <= {check["id"] for check in found}


def test_the_doctor_is_content_with_the_quick_start(capsys):
    assert main(["doctor", "--recipe", "quickstart"]) == 0
    assert "ready: python scripts/train_molt.py --recipe quickstart" in capsys.readouterr().out


def test_the_doctor_reports_a_wrong_recipe_before_the_machine(capsys, monkeypatch):
    monkeypatch.setattr(doctor_command, "examine", lambda review: pytest.fail("the machine was examined"))
    assert main(["doctor", "--recipe", "r1", "--set", "seed=x"]) == 2
    assert "the recipe itself has errors" in capsys.readouterr().out


def test_the_commands_of_other_rooms_are_there(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = capsys.readouterr().out
    assert all(f"\n    {name}" in listed for name in ("train", "review", "doctor", "report", "prepare"))


@pytest.mark.parametrize("launcher", sorted((ROOT / "launchers").glob("*.py")), ids=lambda path: path.stem)
def test_each_launcher_reviews_its_recipe_and_says_what_it_needs(launcher, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [launcher.name, "--dry-run", "--format", "json"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(launcher), run_name="__main__")
    assert left.value.code == 0
    assert json.loads(capsys.readouterr().out)["recipe"] == launcher.stem
    monkeypatch.setattr("sys.argv", [launcher.name, "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(launcher), run_name="__main__")
    assert "Needs " in capsys.readouterr().out
    assert len(launcher.read_text().splitlines()) < 20


def test_the_doctor_without_a_recipe_asks_molts_parser_about_all(capsys, monkeypatch):
    monkeypatch.setattr(checks, "parser_problems", lambda review: [])
    monkeypatch.setattr(Machine, "version", lambda self, name: lock(PACKAGES)[name]["version"])
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "moe + stability: Molt's own parser and checks take the" in said
    monkeypatch.setattr(Machine, "version", lambda self, name: None)
    assert main(["doctor"]) == 2


def test_an_error_shows_no_secret(capsys):
    assert train_main(["--recipe", "r1", "--set", "optim.lr=sk-Abcdefgh12345678", "--output", "x"]) == 2
    told = capsys.readouterr().err
    assert "optim.lr" in told
    assert "Abcdefgh" not in told


def test_a_closed_pipe_is_no_error_worth_a_word():
    script = "import sys; from flashreinforce_molt.cli import train_main; sys.exit(train_main(['--dry-run']))"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    process.stdout.close()
    told = process.stderr.read()
    assert process.wait() == 141
    assert told == b""


def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "flashreinforce_molt.cli", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0
    assert done.stdout.strip()


@pytest.mark.parametrize("option", ["--recipe", "--output"])
def test_an_empty_word_is_refused(option, capsys):
    with pytest.raises(SystemExit) as ended:
        train_main(["--dry-run", option, ""])
    assert ended.value.code == 2
    assert f"argument {option}: must not be empty" in capsys.readouterr().err


def test_an_empty_comparison_is_refused(capsys):
    assert train_main(["--dry-run", "--diff", ""]) == 2
    assert "--diff '' is malformed" in capsys.readouterr().err


def test_a_launcher_offers_only_the_engines_of_its_recipe(capsys):
    with pytest.raises(SystemExit):
        train_main(["--help"], recipe="moe")
    assert "--engine {molt}" in capsys.readouterr().out


def test_a_pipe_that_breaks_elsewhere_is_a_failed_run(capsys, monkeypatch):
    def breaks(options):
        raise BrokenPipeError("the worker is gone")

    monkeypatch.setattr("flashreinforce_molt.cli._run_review", breaks)
    assert train_main(["--dry-run"]) == 1
    assert "run failed: the worker is gone" in capsys.readouterr().err
