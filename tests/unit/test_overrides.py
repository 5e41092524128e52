"""What `--set key=value` accepts, as which type, and how it refuses."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.recipe_file import parse_override
from flashreinforce_molt.recipes import load_experiment, resolve_experiment

TRIAL = Path(__file__).with_name("trial_recipe.yaml")


def value_of(override):
    return parse_override(override).value


def refusal_of(override):
    with pytest.raises(SettingError) as caught:
        parse_override(override)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-3", 1e-3), ("1E-3", 1e-3), ("3.0e-4", 3e-4), (".5", 0.5), ("5.", 5.0), ("+2", 2.0), ("7", 7.0)],
)
def test_a_number_field_takes_every_usual_spelling_and_stays_a_float(text, number):
    value = value_of(f"optim.lr={text}")
    assert value == number
    assert type(value) is float


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3.7", "whole number"),
        ("1e3", "whole number; write 1000"),
        ("64.0", "write 64"),
        ("true", "whole number"),
        ("0012", "whole number"),
        ("0x10", "whole number"),
        ("'3'", "without quotes"),
        ("[3]", "whole number"),
        ("", "needs a value"),
        ("null", "needs a value"),
        ("0", "at least 1"),
        ("-1", "at least 1"),
        ("99999999999999999999", "64 bits"),
        ("9" * 5000, "whole number"),
        ("inf", "finite"),
    ],
)
def test_a_whole_number_field_refuses_what_is_no_whole_number_within_its_limits(text, words):
    message = refusal_of(f"train.updates={text}")
    assert message.startswith("train.updates=")
    assert "(from --set)" in message
    assert words in message
    assert len(message) < 300


def test_a_whole_number_may_be_grouped_by_underscores():
    assert value_of("train.updates=1_000") == 1000


@pytest.mark.parametrize("text", ["2", "1", "yes", "on", "'true'", "null", "1.0", "truth"])
def test_a_switch_takes_only_true_and_false(text):
    assert refusal_of(f"engine.deterministic={text}").startswith("engine.deterministic=")


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("false", False), ("FALSE", False)]
)
def test_a_switch_is_a_bool(text, value):
    assert value_of(f"engine.deterministic={text}") is value


@pytest.mark.parametrize(
    "text", ["0012", "1e5", "7796e48", "1234567", "true", "a: b", "foo #1", "1:30", "2024-01-01", "1_000"]
)
def test_text_stays_as_typed(text):
    assert value_of(f"model.revision={text}") == text


def test_quotes_around_text_are_taken_off():
    assert value_of("model.revision='null'") == "null"
    assert value_of('model.alphabet="[ab] "') == "[ab] "


@pytest.mark.parametrize("text", ["", "null", "~"])
def test_null_is_for_optional_settings_only(text):
    assert value_of(f"model.revision={text}") is None
    assert value_of(f"rollout.max_policy_lag={text}") is None
    assert "model.dtype" in refusal_of(f"model.dtype={text}")


@pytest.mark.parametrize("text", ["nan", ".nan", "NaN", "inf", "-inf", ".inf", "1e999", "infinity"])
def test_numbers_must_be_finite(text):
    assert "finite" in refusal_of(f"optim.lr={text}")
    assert "finite" in refusal_of(f"environment.options={{a: [{text}]}}")


def test_an_infinite_trust_region_has_one_spelling():
    assert "objective.gate=none" in refusal_of("objective.delta=inf")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.top_p=1.5", "must be above 0 and at most 1"),
        ("rollout.temperature=0", "must be above 0; the logits are divided by it"),
        ("objective.delta=-1e-3", "at least 0"),
        ("train.batch_size=1", "Eq. 5"),
        ("rollout.queue_depth=0", "engine.mode=sync"),
        ("objective.gate=sequnce", "one of sequence, token, none"),
        ("engine.mode= sync", 'engine.mode=" sync"'),
        ("rollout.in_flight=1000000000", "at most 100,000"),
        ("seed=-1", "at least 0"),
    ],
)
def test_limits_and_choices_are_named(override, words):
    assert words in refusal_of(override)


@pytest.mark.parametrize("override", ["foo", "", "=3", " =3", "optim.lr", None, 3, ["optim.lr=3"]])
def test_a_malformed_override_shows_the_right_form(override):
    assert "--set key=value" in refusal_of(override)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("optim.lrr", "optim.lr"),
        ("lr", "optim.lr"),
        ("objective.negative_tokens_fraction", "objective.negative_token_fraction"),
        ("rollout.topp", "rollout.top_p"),
        ("optim.lr.x", "optim.lr"),
        ("rollout.max_lag", "rollout.max_policy_lag"),
        ("x" * 100_000, "nearest"),
    ],
)
def test_an_unknown_key_names_the_nearest_three(key, near):
    message = refusal_of(f"{key}=3")
    assert message.startswith("unknown setting ")
    assert near in message
    assert message.partition("nearest: ")[2].count(",") == 2
    assert len(message) < 400


def test_a_group_lists_its_settings():
    assert "rollout.in_flight, rollout.queue_depth" in refusal_of("rollout={top_p: 1}")


@pytest.mark.parametrize(
    "override",
    [
        "model.id=${oc.env:HF_TOKEN}",
        "model.id='a${oc.env:HF_TOKEN}'",
        "environment.options={a: {b: ['x${oc.env:HF_TOKEN}']}}",
        "environment.options={'${oc.env:HF_TOKEN}': 1}",
        "environment.options.a=${oc.env:HF_TOKEN}",
        "environment.options.${oc.env:HF_TOKEN}=1",
        "model.id=???",
    ],
)
def test_interpolations_are_refused_and_never_resolved(override, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    message = refusal_of(override)
    assert "interpolation" in message
    assert "hf_secret" not in message


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "environment.options=!!python/object/apply:os.system [echo]",
            "!!python/object/apply:os.system is refused",
        ),
        ("model.id=!!python/name:os.system", "refused"),
        ("environment.options={a: !custom 1}", "refused"),
        ("environment.options={a: 1, a: 2}", "written twice"),
        ("environment.options={a: &x 1, b: *x}", "anchors"),
        ("environment.options={<<: {a: 1}}", "merge keys"),
        ("environment.options={? [a] : 1}", "plain text"),
        ("environment.options={a: 1", "expected ',' or '}'"),
        ("environment.options=" + "[" * 5000, "20 deep"),
        ("environment.options=" + "{a: " * 25 + "}" * 25, "20 deep"),
        ("environment.options." + "a." * 30 + "b=1", "20 deep"),
        ("environment.options.a..b=1", "empty"),
        ("environment.options=3", "must be a mapping"),
        ("environment.options=[1]", "must be a mapping"),
        ("environment.options={a: 99999999999999999999}", "64 bits"),
        ('environment.options={a: "\\UFFFFFFFF"}', "not valid YAML"),
        ('model.id="\\ud800"', "unprintable"),
        ("model.id=a\0b", "unprintable"),
        ("model.id=\x1b[31m", "unprintable"),
        ("model.id=" + "a" * 20_000, "20,000 characters"),
        ("optim.lr=" + "1" * 20_000, "20,000 characters"),
        ("model.id=[a, b]", "must be text"),
        ("model.id={a: b}", "must be text"),
    ],
)
def test_hostile_values_are_refused_politely(override, words):
    message = refusal_of(override)
    assert words in message
    assert message.isprintable()
    assert len(message) < 400


@settings(max_examples=100, deadline=None)
@given(
    key=st.sampled_from(
        ["environment.options", "environment.options.a", "model.id", "optim.lr", "train.updates", "seed"]
    ),
    text=st.text(max_size=30) | st.text("{}[]:,&*!|>'\"%@`#-?.~0123456789einfaul \n\t", max_size=30),
)
def test_any_value_is_either_taken_or_refused_as_a_setting_error(key, text):
    try:
        resolution = resolve_experiment(TRIAL, overrides=[f"{key}={text}"])
    except SettingError as error:
        pytest.fail(f"a mistake in an override must be a check, not {error}")
    assert resolution.experiment.config.seed >= 0


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_override_text_is_either_taken_or_refused_as_a_setting_error(text):
    try:
        parse_override(text)
    except SettingError:
        return
    pytest.fail("random text can hardly be a valid override")


def test_one_key_inside_a_mapping_is_set_without_losing_the_others():
    experiment = load_experiment(TRIAL, overrides=["environment.options.parameters.min_word_len=4"])
    assert experiment.config.environment.options == {
        "dataset": "spell_backward",
        "parameters": {"min_word_len": 4, "max_word_len": 5},
    }
    setting = experiment.settings["environment.options"]
    assert setting.layer == "--set"
    assert setting.source.startswith("command line for parameters.min_word_len; the rest recipe: ours:")
    assert setting.replaced[-1][0] == "recipe"
    assert setting.replaced[-1][1]["parameters"]["min_word_len"] == 3


def test_a_key_inside_a_mapping_may_be_new():
    experiment = load_experiment(TRIAL, overrides=["environment.options.more.deep=[1, x]"])
    assert experiment.config.environment.options["more"] == {"deep": [1, "x"]}


def test_a_whole_mapping_is_replaced():
    experiment = load_experiment(TRIAL, overrides=["environment.options={dataset: leg_counting}"])
    assert experiment.config.environment.options == {"dataset": "leg_counting"}


def test_a_path_through_a_plain_value_is_refused():
    with pytest.raises(SettingError, match=r"environment\.options\.dataset=spell_backward is not a mapping"):
        load_experiment(TRIAL, overrides=["environment.options.dataset.x=1"])
