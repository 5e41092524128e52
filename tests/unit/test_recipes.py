"""The shipped recipes, the layers of an experiment, and where recipes are found."""

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashreinforce_molt.config import Config, SettingError
from flashreinforce_molt.config.catalogue import catalogue
from flashreinforce_molt.config.recipe_file import read_recipe
from flashreinforce_molt.recipes import available_recipes, load_experiment, resolve_experiment

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [
    (recipe, variant, engine)
    for recipe, listed in available_recipes().items()
    for variant in (None, *listed.variants)
    for engine in listed.engines
]

PROMISED_NAMES = [
    "seed",
    "train.updates",
    "train.batch_size",
    "train.micro_batch_size",
    "engine.mode",
    "engine.deterministic",
    "engine.workers",
    "rollout.in_flight",
    "rollout.queue_depth",
    "rollout.max_policy_lag",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.max_new_tokens",
    "objective.delta",
    "objective.negative_token_fraction",
    "objective.aggregation",
    "objective.gate",
    "optim.lr",
    "checkpoint.every",
    "model.id",
    "model.revision",
]


@pytest.mark.parametrize(("recipe", "variant", "engine"), SHIPPED)
def test_every_shipped_recipe_loads_with_each_variant_on_each_engine(recipe, variant, engine):
    experiment = load_experiment(recipe, variants=[variant] if variant else [], engine=engine)
    assert experiment.recipe == recipe
    assert experiment.engine == engine
    assert list(experiment.settings) == list(catalogue())
    for setting in experiment.settings.values():
        assert setting.source


def test_every_recipe_file_is_well_formed():
    files = sorted((ROOT / "recipes").glob("*.yaml"))
    assert files
    for path in files:
        assert read_recipe(path.stem, path.read_text(encoding="utf-8"), path.name).problems == ()


def test_config_and_settings_agree():
    experiment = load_experiment("quickstart", overrides=["seed=3"])
    assert isinstance(experiment.config, Config)
    for name, setting in experiment.settings.items():
        value = experiment.config
        for part in name.split("."):
            value = getattr(value, part)
        assert value == setting.value, name
        assert type(value) is type(setting.value), name


def test_the_quick_start_runs_on_the_local_engine_from_a_model_built_here():
    experiment = load_experiment("quickstart")
    assert experiment.engine == "local"
    assert experiment.config.model.config["model_type"] == "qwen2"
    assert experiment.settings["optim.lr"].replaced[:2] == (
        ("default", 1e-6, "default"),
        ("base", 1e-6, "published shared setting: AdamW, 1e-6"),
    )


@pytest.mark.parametrize("name", PROMISED_NAMES)
def test_promised_setting_names_exist(name):
    assert name in catalogue()


@pytest.mark.parametrize(
    "override",
    ["engine.deterministic=true", "engine.mode=sync", "rollout.max_policy_lag=null", "train.updates=2"],
)
def test_the_quick_start_takes_the_usual_switches_alone(override):
    load_experiment("quickstart", overrides=[override])


def test_loading_twice_gives_equal_but_separate_experiments():
    first, second = load_experiment("quickstart"), load_experiment("quickstart")
    assert first == second
    first.config.model.config["model_type"] = "llama"
    first.settings["environment.options"].value["dataset"] = "other"
    assert load_experiment("quickstart") == second


def test_an_experiment_can_be_sent_to_a_process():
    experiment = load_experiment("quickstart")
    assert pickle.loads(pickle.dumps(experiment)) == experiment
    error = SettingError("a", "b")
    assert pickle.loads(pickle.dumps(error)).problems == ("a", "b")


def test_resolving_keeps_going_where_loading_stops():
    resolution = resolve_experiment("quickstart", overrides=["rollout.top_p=0.5", "seed=x"])
    assert [check.settings[0] for check in resolution.errors] == ["seed", "rollout.top_p"]
    assert resolution.experiment.config.rollout.top_p == 0.5
    assert resolution.experiment.config.seed == 0


def test_the_installed_package_finds_its_recipes_without_the_checkout(tmp_path):
    shutil.copytree(
        ROOT / "flashreinforce_molt",
        tmp_path / "flashreinforce_molt",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(ROOT / "recipes", tmp_path / "flashreinforce_molt" / "shipped_recipes")
    script = (
        "import flashreinforce_molt.recipes as r; print(r.__file__); print(*r.available_recipes());"
        "print(r.load_experiment('quickstart').config.train.batch_size)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script]
        if sys.version_info >= (3, 11)
        else [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    where, names, batch = done.stdout.splitlines()
    assert where.startswith(str(tmp_path))
    assert "quickstart" in names.split()
    assert batch == str(load_experiment("quickstart").config.train.batch_size)
