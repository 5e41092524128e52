"""The rules between settings: what is an error, what a warning, and what the loader derives."""

from pathlib import Path

import pytest

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config import validate as rules
from flashreinforce_molt.recipes import load_experiment, resolve_experiment

TRIAL = Path(__file__).with_name("trial_recipe.yaml")


def findings(*overrides):
    """(level, message) of every check that is not fine."""
    return [
        (check.level, check.message)
        for check in resolve_experiment(TRIAL, overrides=overrides).checks
        if check.level != "ok"
    ]


def the_only(*overrides):
    found = findings(*overrides)
    assert len(found) == 1, found
    return found[0]


def test_a_sound_recipe_has_nothing_to_complain_about():
    assert findings() == []


def test_the_registry_holds_every_rule_once():
    named = {name: value for name, value in vars(rules).items() if name.startswith(("validate_", "auto_"))}
    registered = [*rules.VALIDATORS, *rules.DERIVATIONS]
    assert sorted(rule.__name__ for rule in registered) == sorted(named)
    assert all(rule.__doc__ for rule in registered)


@pytest.mark.parametrize("setting", ["top_p=0.95", "top_k=50", "min_p=0.1", "repetition_penalty=1.1"])
def test_sampling_without_full_support_is_refused_unless_allowed_in_so_many_words(setting):
    level, message = the_only(f"rollout.{setting}")
    assert level == "error"
    assert message.startswith(f"rollout.{setting} (from --set) ")
    assert "the importance ratio is wrong" in message
    level, message = the_only(f"rollout.{setting}", "rollout.allow_truncated_sampling=true")
    assert level == "warning"
    assert "accepted by rollout.allow_truncated_sampling=true (from --set)" in message


def test_the_refusal_of_truncated_sampling_reads_as_documented():
    with pytest.raises(SettingError) as caught:
        load_experiment(TRIAL, overrides=["rollout.top_p=0.95"])
    assert str(caught.value) == (
        "rollout.top_p=0.95 (from --set) truncates sampling support, so the importance ratio is wrong; "
        "use 1.0 or set rollout.allow_truncated_sampling=true"
    )


ERRORS = [
    (
        ["rollout.max_new_tokens=64"],
        "leaves no room for the prompt in rollout.max_context_tokens=64 (from recipe)",
    ),
    (["rollout.max_turn_tokens=13"], "exceeds rollout.max_new_tokens=12 (from recipe)"),
    (["rollout.max_context_tokens=129"], "exceeds the 128 positions of model.config"),
    (["objective.aggregation=constant-length"], "needs its divisor; set objective.constant_length"),
    (["train.micro_batch_size=65"], "exceeds train.batch_size=64 (from recipe)"),
    (["model.id=a/b"], "name two models"),
    (["model.config={}"], "no model: set model.id"),
    (["model.config={hidden_size: 8}"], "model.config (--set) needs a model_type"),
    (["model.config={model_type: 3}"], "needs a model_type"),
    (["model.id=", "model.config={}"], "no model"),
    (["model.id= ", "model.config={}"], "neither a Hugging Face id nor a directory"),
    (["model.alphabet=aba"], "model.alphabet (--set) holds 'a' twice"),
    (['model.alphabet=""'], "is empty"),
    (
        ["model.attention=flash_attention_2", "model.dtype=bfloat16"],
        "needs a GPU, but engine.device=cpu (default)",
    ),
    (["model.attention=flash_attention_2", "engine.device=cuda"], "but model.dtype=float32 (from recipe)"),
    (
        ["engine.workers=65"],
        "leaves some of engine.workers=65 (from --set) without a trajectory; use 65 or more",
    ),
    (["engine.workers=3"], "does not divide over engine.workers=3 (from --set); use 63 or 66"),
    (
        ["engine.deterministic=true", "engine.workers=2"],
        "needs one worker, but engine.workers=2 (from --set)",
    ),
    (["objective.importance_correction=false", "objective.ratio_gradient=through"], "use detached"),
]


@pytest.mark.parametrize(("overrides", "words"), ERRORS)
def test_contradictions_are_errors_that_name_both_sides(overrides, words):
    errors = [message for level, message in findings(*overrides) if level == "error"]
    assert any(words in message for message in errors), errors
    with pytest.raises(SettingError):
        load_experiment(TRIAL, overrides=overrides)


WARNINGS = [
    (["rollout.temperature=0.7"], "published runs train at 1"),
    (["objective.constant_length=12"], "has no effect with objective.aggregation=sample-mean"),
    (["objective.aggregation=token-mean"], "is an ablation"),
    (["objective.importance_correction=false"], "replaces every ratio by 1"),
    (["objective.importance_correction=false"], "objective.gate=sequence (from base) has no effect"),
    (["objective.gate=token"], "is an ablation"),
    (["objective.gate=none"], "no trajectory is rejected"),
    (["objective.delta=0"], "admits only trajectories without any drift"),
    (["objective.negative_token_fraction=0"], "only successes train"),
    (["engine.mode=sync"], "rollout.max_policy_lag=2 (from recipe) is never reached"),
    (
        ["engine.mode=sync", "rollout.in_flight=128"],
        "at most train.batch_size=64 (from recipe) are under way",
    ),
    (["rollout.max_policy_lag=0"], "makes the workers wait"),
    (["rollout.in_flight=256"], "keeps at most 192 trajectories under way"),
    (["model.config={}", "model.id=a/b"], "model.id=a/b (from --set) is UNPINNED"),
    (["model.config={}", "model.id=a/b", "model.revision=main"], "may move"),
    (["model.revision=" + "a" * 40], "has no effect on a model that is not downloaded"),
    (["model.trust_remote_code=true"], "runs Python code of the model repository"),
    (["model.config={}", "model.id=a/b", "model.revision=" + "a" * 40], "before the method starts"),
]


@pytest.mark.parametrize(("overrides", "words"), WARNINGS)
def test_doubtful_settings_are_warnings_and_run(overrides, words):
    warnings = [message for level, message in findings(*overrides) if level == "warning"]
    assert any(words in message for message in warnings), warnings
    load_experiment(TRIAL, overrides=overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["objective.aggregation=constant-length", "objective.constant_length=12", "objective.delta=1"],
        ["engine.mode=sync", "rollout.max_policy_lag=0"],
        ["engine.mode=sync", "rollout.max_policy_lag=null"],
        ["engine.workers=2"],
        ["objective.negative_token_fraction=0.9"],
        ["engine.deterministic=true"],
        ["rollout.max_policy_lag=null", "rollout.in_flight=512"],
        ["train.micro_batch_size=64"],
    ],
)
def test_sound_combinations_cause_no_error(overrides):
    assert [message for level, message in findings(*overrides) if level == "error"] == []


def test_a_directory_is_a_model_without_revision(tmp_path):
    overrides = ["model.config={}", f"model.id={tmp_path}", "warm_start.steps=0"]
    assert findings(*overrides) == []


def test_a_sync_run_derives_its_lag_bound_where_nobody_wrote_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("summary: x\nengines: [local]\nsettings:\n  model:\n    id: {value: a/b, source: x}\n")
    experiment = load_experiment(path, overrides=["engine.mode=sync"])
    setting = experiment.settings["rollout.max_policy_lag"]
    assert experiment.config.rollout.max_policy_lag == 0
    assert setting.layer == "derived"
    assert "engine.mode=sync" in setting.source
    assert setting.replaced == (("default", None, "default"),)
    assert load_experiment(path).config.rollout.max_policy_lag is None


@pytest.mark.parametrize("written", ["2", "null"])
def test_a_derived_value_never_replaces_a_written_one(tmp_path, written):
    experiment = load_experiment(TRIAL, overrides=["engine.mode=sync", f"rollout.max_policy_lag={written}"])
    assert experiment.settings["rollout.max_policy_lag"].layer == "--set"


def test_every_check_names_existing_settings():
    resolution = resolve_experiment(TRIAL, overrides=["engine.deterministic=true"])
    known = set(resolution.experiment.settings)
    assert {check.id for check in resolution.checks} >= {
        "model",
        "full-support",
        "deterministic",
        "policy-lag",
    }
    for check in resolution.checks:
        assert set(check.settings) <= known
        assert check.message
