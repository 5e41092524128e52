"""What the doctor says about a machine, and that nothing starts before it is content."""

import json
import os
import shlex
import stat

import pytest
from published import flags_of, review_of

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.locks import PACKAGES, lock
from flashreinforce_molt.doctor import Gpu, Machine, checks, examine
from flashreinforce_molt.doctor.checks import LOCAL_CHECKS, MOLT_CHECKS
from flashreinforce_molt.doctor.data_files import data_problem
from flashreinforce_molt.doctor.machine import RayCluster
from flashreinforce_molt.doctor.start import COMMAND_FILE, start_molt


class Pretended(Machine):
    """A machine that has everything, unless told otherwise."""

    def __init__(self, folder, **said):
        super().__init__(folder=folder, environ={})
        self.said = {
            "python": "3.11.7",
            "gpus": [Gpu("NVIDIA H100", 80.0)] * 8,
            "ray_cluster": None,
            "run": None,
            "versions": {name: entry["version"] for name, entry in lock(PACKAGES).items()}
            | {"pyarrow": "26"},
            **said,
        }

    def python(self):
        return self.said["python"]

    def version(self, package):
        return self.said["versions"].get(package)

    def gpus(self):
        return self.said["gpus"]

    def ray_cluster(self):
        return self.said["ray_cluster"]

    def run(self, script):
        return self.said["run"]


@pytest.fixture
def review(tmp_path):
    """r1 with a model, an agent and data as JSON lines in a temporary folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "agent.py").write_text("AgentRunner = object")
    rows = {"train.jsonl": 1460, "aime24.jsonl": 30}
    for name, count in rows.items():
        line = json.dumps({"prompt": [], "reward_model": {}, "datasource": "x"}) + "\n"
        (tmp_path / name).write_text(line * count)
    return review_of(
        "r1",
        "molt.model_path=model",
        f"molt.agent={tmp_path}/agent.py",
        "data.path=train.jsonl",
        "evaluation.suites={aime24: {id: a/b, split: train, rows: 30, path: aime24.jsonl}}",
    )


@pytest.fixture(autouse=True)
def _parser_content(monkeypatch):
    monkeypatch.setattr(checks, "parser_problems", lambda review: [])


def failures(review, machine):
    return [check.message for check in examine(review, machine) if check.level == "error"]


def test_a_machine_that_has_everything_is_fine(review, tmp_path):
    found = examine(review, Pretended(tmp_path))
    assert [check for check in found if check.level != "ok"] == []
    assert {check.id for check in found} == {
        "python",
        "packages",
        "molt-parser",
        "gpus",
        "model",
        "data",
        "agent",
    }


def test_every_check_is_registered_and_documented():
    named = {value for name, value in vars(checks).items() if name.startswith("check_")}
    assert named == {*MOLT_CHECKS, *LOCAL_CHECKS}
    assert all(check.__doc__ for check in named)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"python": "3.9.1"}, "Python 3.9.1 is outside 3.10 to 3.13"),
        ({"python": "3.14.0"}, "Python 3.14.0 is outside 3.10 to 3.13"),
        (
            {"gpus": []},
            "8 GPUs are needed, this machine (no Ray cluster runs; Molt would start one here) has 0",
        ),
        ({"ray_cluster": RayCluster(4, 2)}, "8 GPUs are needed, the running Ray cluster of 2 machines has 4"),
        ({"versions": {}}, "molt-rl 0.2.1 is missing; pip install molt-rl==0.2.1"),
        ({"run": "ImportError: no"}, "agent.py cannot be loaded: ImportError: no"),
    ],
)
def test_a_lack_is_named_with_its_fix(review, tmp_path, said, message):
    assert message in " | ".join(failures(review, Pretended(tmp_path, **said)))


def test_another_version_is_refused_unless_it_is_allowed_and_another_molt_always(review, tmp_path):
    versions = {name: entry["version"] for name, entry in lock(PACKAGES).items()} | {
        "molt-rl": "0.3.0",
        "vllm": "0.40",
        "math-verify": "0.8.0",
    }
    machine = Pretended(tmp_path, versions=versions)
    levels = lambda which: {  # noqa: E731
        check.message.split()[0]: check.level for check in examine(which, machine) if check.id == "packages"
    }
    assert levels(review) == {"molt-rl": "error", "vllm": "error", "math-verify": "error"}
    assert any(
        "pip install math-verify==0.9.0, or set engine.allow_other_versions=true" in each
        for each in failures(review, machine)
    )
    allowed = review_of("r1", "engine.allow_other_versions=true")
    assert levels(allowed) == {"molt-rl": "error", "vllm": "warning", "math-verify": "warning"}


def test_every_recipe_asks_for_the_packages_of_its_environment(tmp_path):
    machine = Pretended(tmp_path, versions={})
    for recipe, wanted in {
        "r1": ("math-verify==0.9.0", "pyarrow"),
        "moe": ("math-verify==0.9.0", "pyarrow"),
        "alfworld": ("alfworld==0.4.2", "textworld==1.7.0", "pyarrow"),
    }.items():
        text = " | ".join(failures(review_of(recipe), machine))
        assert [each for each in wanted if each not in text] == []
    assert "math-verify" not in " | ".join(failures(review_of("alfworld"), machine))


def test_the_launcher_prints_the_warnings_too(review, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flashreinforce_molt.doctor.start._LAUNCH", "json")
    started(review, Pretended(tmp_path, gpus=[Gpu("NVIDIA A100", 40.0)] * 8), tmp_path)
    assert "warning: a GPU here has 40 GiB" in capsys.readouterr().err


def test_a_running_ray_cluster_counts_instead_of_this_machine(review, tmp_path):
    machine = Pretended(tmp_path, gpus=[], ray_cluster=RayCluster(16, 2))
    assert failures(review, machine) == []


def test_a_smaller_gpu_asks_for_another_plan(review, tmp_path):
    found = examine(review, Pretended(tmp_path, gpus=[Gpu("NVIDIA A100", 40.0)] * 8))
    (warning,) = [check.message for check in found if check.level == "warning"]
    assert "a GPU here has 40 GiB, the plan assumes cluster.gpu_memory_gib=80" in warning


def test_all_failures_are_told_at_once(tmp_path):
    found = failures(review_of("alfworld"), Pretended(tmp_path, gpus=[], versions={}))
    text = " | ".join(found)
    for part in (
        "GPUs are needed",
        "molt-rl 0.2.1 is missing",
        "holds no config.json; hf download",
        "is missing; flashreinforce-molt prepare alfworld",
        "ALFWORLD_DATA is not set",
    ):
        assert part in text
    assert len(found) >= 8


def test_the_folder_of_the_games_is_asked_for(tmp_path):
    machine = Pretended(tmp_path)
    machine.environ = {"ALFWORLD_DATA": str(tmp_path / "nowhere")}
    assert "ALFWORLD_DATA names no folder" in " | ".join(failures(review_of("alfworld"), machine))
    machine.environ = {"ALFWORLD_DATA": str(tmp_path)}
    assert "folder without games" in " | ".join(failures(review_of("alfworld"), machine))
    (tmp_path / "valid_seen").mkdir()
    (tmp_path / "valid_seen" / "game.tw-pddl").write_text("{}")
    assert "ALFWORLD_DATA" not in " | ".join(failures(review_of("alfworld"), machine))


def test_what_molts_parser_says_is_a_failure(review, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "parser_problems", lambda review: ["Molt takes a=1, the review says 2"])
    assert failures(review, Pretended(tmp_path)) == ["Molt takes a=1, the review says 2"]


def test_a_data_file_needs_its_columns_and_rows(tmp_path):
    data = review_of("python_tools").experiment.config.data
    path = tmp_path / "x.jsonl"
    assert data_problem(path, data, 2) == "is missing"
    path.write_text('{"prompt": [], "answer": 1}\n{"prompt": [], "answer": 1}\n')
    assert data_problem(path, data, 2) == "has no column reward_model or tools, but prompt, answer"
    path.write_text('{"prompt": [], "reward_model": {}, "tools": []}\n')
    assert data_problem(path, data, 2) == "has 1 rows instead of 2"
    assert data_problem(path, data, 1) is None
    path.write_text("[1]\n")
    assert "cannot be read" in data_problem(path, data, 1)
    path.write_text("not json\n")
    assert "cannot be read" in data_problem(path, data, 1)


def test_a_parquet_file_is_read_without_loading_it(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a"] * 3, "reward_model": ["b"] * 3}), path)
    data = review_of("r1").experiment.config.data
    assert data_problem(path, data, 3) is None
    assert data_problem(path, data, 4) == "has 3 rows instead of 4"


def test_hidden_gpus_do_not_count(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'NVIDIA H100, 81920\\nNVIDIA H100, 81920\\n'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Machine().gpus() == [Gpu("NVIDIA H100", 80.0)] * 2
    assert len(Machine(environ={"CUDA_VISIBLE_DEVICES": "1"}).gpus()) == 1
    assert Machine(environ={"CUDA_VISIBLE_DEVICES": ""}).gpus() == []


def test_a_machine_without_a_driver_or_ray_has_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Machine().gpus() == []
    assert Machine(seconds=0.001).ray_cluster() is None
    assert Machine().run("raise ValueError('x')") == "ValueError: x"
    assert Machine().run("print(1)") is None


def started(review, machine, tmp_path, **options):
    calls = []
    code = start_molt(review, machine=machine, become=lambda *call: calls.append(call), **options)
    return code, calls


def test_a_start_without_everything_raises_all_failures_and_writes_nothing(review, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError) as caught:
        started(review, Pretended(tmp_path, gpus=[], python="3.9.0"), tmp_path)
    assert len(caught.value.problems) == 2
    assert not (tmp_path / "runs").exists()


def test_a_start_with_a_mistake_never_examines_the_machine(tmp_path):
    with pytest.raises(SettingError, match="truncates sampling support"):
        start_molt(review_of("r1", "rollout.top_p=0.9"), machine=None)


def test_a_start_writes_config_provenance_and_command_and_becomes_it(review, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flashreinforce_molt.doctor.start._LAUNCH", "json")
    code, calls = started(review, Pretended(tmp_path), tmp_path)
    assert code == 0
    ((executable, words, environment),) = calls
    assert words[0] == executable
    assert words[1:] == list(review.command[1:])
    assert environment["PATH"] == os.environ["PATH"]
    run = tmp_path / "runs" / "r1"
    assert "delta: 0.003" in (run / "config.yaml").read_text()
    provenance = json.loads((run / "provenance.json").read_text())
    assert provenance["settings"]["objective.delta"]["layer"] == "recipe"
    assert provenance["flags"]["flash.delta"]["value"] == 3e-3 == flags_of(review)["flash.delta"]
    assert provenance["pins"]["package"]["molt-rl"]["version"] == "0.2.1"
    assert "--flash.delta 0.003" in (run / COMMAND_FILE).read_text()


def test_a_resumed_start_keeps_the_provenance_of_the_first(review, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flashreinforce_molt.doctor.start._LAUNCH", "json")
    started(review, Pretended(tmp_path), tmp_path)
    run = tmp_path / "runs" / "r1"
    for step in (128, 1280, 256):
        (run / "checkpoints" / "_actor" / f"global_step{step}").mkdir(parents=True)
    (run / "checkpoints" / "_actor" / "best_global_step64").mkdir()
    started(review, Pretended(tmp_path), tmp_path, resume=True)
    provenance = json.loads((run / "provenance.json").read_text())
    assert [entry["update"] for entry in provenance["resumes"]] == [1280]
    assert provenance["settings"]["objective.delta"]["value"] == 3e-3


def test_a_resumed_run_keeps_its_method_unless_the_change_is_accepted(review, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flashreinforce_molt.doctor.start._LAUNCH", "json")
    started(review, Pretended(tmp_path), tmp_path)
    run = tmp_path / "runs" / "r1"
    words = review.start[-1].split("--set ")[1:]
    given = [shlex.split(word)[0] for word in words]
    other = review_of("r1", *given, "objective.delta=0.01")
    with pytest.raises(SettingError, match=r"objective.delta=0.01 .from --set.: this run began with 0.003"):
        started(other, Pretended(tmp_path), tmp_path, resume=True)
    assert "delta: 0.003" in (run / "config.yaml").read_text()
    assert json.loads((run / "provenance.json").read_text())["resumes"] == []
    first = json.loads((run / "provenance.json").read_text())["started"]
    started(other, Pretended(tmp_path), tmp_path, resume=True, accept_changes=True)
    provenance = json.loads((run / "provenance.json").read_text())
    assert "delta: 0.01" in (run / "config.yaml").read_text()
    assert "--flash.delta 0.01" in (run / COMMAND_FILE).read_text()
    assert (
        provenance["settings"]["objective.delta"]["value"]
        == provenance["flags"]["flash.delta"]["value"]
        == 0.01
    )
    assert provenance["resumes"][0]["changed"] == {"objective.delta": [0.003, 0.01]}
    assert provenance["started"] == first


def test_until_the_launch_is_there_a_start_ends_in_plain_words(review, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flashreinforce_molt.doctor.start.importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match="nothing was started"):
        started(review, Pretended(tmp_path), tmp_path)


def test_the_local_engine_asks_for_its_packages(tmp_path):
    found = examine(
        review_of("quickstart"), Pretended(tmp_path, versions={"torch": "2.13.0", "omegaconf": "2.4"})
    )
    assert [check.message for check in found if check.level == "error"] == [
        "transformers missing; pip install -e ."
    ]
