"""What a recipe file may say, and what the loader says about a wrong one."""

import contextlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.config.recipe_file import read_recipe
from flashreinforce_molt.recipes import available_recipes, load_experiment

HEAD = "summary: A test.\nengines: [local]\n"
MODEL = "  model:\n    id: {value: some/model, source: test}\n"


@pytest.fixture
def shelf(tmp_path):
    """Writes recipes into a folder and loads one of them."""

    def load(text, name="trial", **keywords):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        return load_experiment(name, recipes_dir=tmp_path, **keywords)

    load.folder = tmp_path
    return load


def refusal(shelf, text, **keywords):
    with pytest.raises(SettingError) as caught:
        shelf(text, **keywords)
    return str(caught.value)


def test_a_recipe_lays_its_values_over_the_defaults(shelf):
    text = HEAD + "settings:\n" + MODEL + '  optim:\n    lr: {value: 1e-3, source: "paper, Table 5"}\n'
    experiment = shelf(text)
    assert experiment.config.optim.lr == 1e-3
    setting = experiment.settings["optim.lr"]
    assert (setting.value, setting.source, setting.layer) == (1e-3, "paper, Table 5", "recipe")
    assert setting.replaced == (("default", 1e-6, "default"),)
    assert str(setting) == "optim.lr=0.001 (from recipe)"


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        ("lr: 1e-3", 'optim.lr has no source; write lr: {value: 1e-3, source: "where it comes from"}'),
        ("lr: {value: 1e-3}", "optim.lr has no source; say in words"),
        ("lr: {value: 1e-3, source: }", "optim.lr has no source"),
        ("lr: {value: 1e-3, source: '  '}", "optim.lr has no source"),
        ("lr: {value: 1e-3, source: 5}", "optim.lr has no source"),
        ("lr: {source: paper}", "optim.lr has no value"),
        ("lr: {value: 1e-3, source: paper, note: x}", "unknown key note"),
        ("lr: {value: fast, source: paper}", "optim.lr=fast"),
        (
            "learning_rate: {value: 1e-3, source: paper}",
            "unknown setting optim.learning_rate; nearest: optim.",
        ),
    ],
)
def test_a_wrong_leaf_names_file_line_and_key(shelf, leaf, words):
    message = refusal(shelf, HEAD + "settings:\n" + MODEL + f"  optim:\n    {leaf}\n")
    assert words in message
    assert "trial.yaml, line 7" in message


def test_a_group_must_be_a_mapping(shelf):
    assert "optim must be a mapping" in refusal(shelf, HEAD + "settings:\n  optim: 3\n" + MODEL)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a recipe is a mapping"),
        ("- a\n- b\n", "a recipe is a mapping"),
        (HEAD + "settings: {}\nsettings: {}\n", "line 4: the key 'settings' is written twice"),
        (HEAD + "settings:\n\tmodel: 1\n", "line 4"),
        (HEAD + "settings: {model: [}\n", "line 3"),
        (
            HEAD + "settings: !!python/object/apply:os.system [echo]\n",
            "line 3: the YAML tag !!python/object/apply",
        ),
        (HEAD + "settings: &a\n  model: *a\n", "anchors"),
        (HEAD + "---\n" + HEAD, "another document"),
        (HEAD + "settings: " + "[" * 100_000, "20 deep"),
        (HEAD + "# " + "x" * 300_000, "more than the 262,144 allowed"),
        (HEAD + "settings: {}\n# \x07\n", "line 4: the character #x0007 is not allowed"),
    ],
)
def test_invalid_yaml_names_file_and_line(shelf, text, words):
    message = refusal(shelf, text)
    assert words in message
    assert "trial.yaml" in message


@settings(max_examples=150, deadline=None)
@given(
    st.text("{}[]:,&*!|>'\"%@`#-?.~\\01e \n\t", max_size=40),
    st.integers(0, 200),
)
def test_a_damaged_recipe_file_is_a_setting_error_or_a_list_of_problems(damage, place):
    text = HEAD + "settings:\n" + MODEL + VARIANTS
    with contextlib.suppress(SettingError):
        read_recipe("trial", text[:place] + damage + text[place:], "trial.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engines: [local]\nsettings:\n" + MODEL, "needs summary"),
        (HEAD + "sumary: x\nsettings:\n" + MODEL, "unknown key sumary; known: summary"),
        ("summary: x\nengines: local\nsettings:\n" + MODEL, "engines must be a list"),
        ("summary: x\nengines: [locl]\nsettings:\n" + MODEL, "unknown engine locl; nearest: local"),
        (HEAD + "requires: [1]\nsettings:\n" + MODEL, "requires must be a list of texts"),
        (HEAD + "variants: [a]\nsettings:\n" + MODEL, "variants must be a mapping"),
        (HEAD + "variants: {a: }\nsettings:\n" + MODEL, "variant a must be a mapping"),
        (HEAD + "variants: {A b: {summary: x}}\nsettings:\n" + MODEL, "lower-case"),
        (
            HEAD + "variants: {a: {settings: {optim: {lr: 3}}}}\nsettings:\n" + MODEL,
            "variant a needs summary",
        ),
    ],
)
def test_the_form_of_a_recipe_is_checked(shelf, text, words):
    assert words in refusal(shelf, text)


def test_a_mistake_in_a_variant_nobody_asked_for_is_reported_too(shelf):
    text = HEAD + "settings:\n" + MODEL + "variants:\n  v:\n    summary: x\n    settings: {optim: {lr: 3}}\n"
    assert "optim.lr has no source" in refusal(shelf, text)


def test_every_mistake_is_listed_at_once(shelf):
    text = HEAD + "settings:\n" + MODEL + "  optim:\n    lr: 3\n    beta3: {value: 1, source: x}\n"
    with pytest.raises(SettingError) as caught:
        shelf(text, variants=["nope"], overrides=["seed=x", "rollout.top_p=0.9"], engine="molt")
    problems = caught.value.problems
    assert len(problems) == 6
    assert str(caught.value).startswith("6 problems:\n  - ")
    for words in (
        "optim.lr has no",
        "optim.beta3",
        "variant nope",
        "seed=x",
        "rollout.top_p=0.9",
        "engine molt",
    ):
        assert any(words in message for message in problems), words


def test_a_broken_setting_does_not_cause_further_complaints(shelf):
    text = HEAD + "settings:\n" + MODEL
    message = refusal(shelf, text, overrides=["rollout.max_context_tokens=abc", "rollout.max_new_tokens=500"])
    assert (
        message
        == "rollout.max_context_tokens=abc (from --set) must be a whole number, at least 2 and at most 10,000,000"
    )


def test_a_recipe_extends_one_base(shelf):
    (shelf.folder / "ground.yaml").write_text(
        "summary: base\nsettings:\n  optim:\n    lr: {value: 1e-4, source: ground}\n    eps: {value: 1e-7, source: ground}\n"
    )
    text = HEAD + "extends: ground\nsettings:\n" + MODEL + "  optim:\n    lr: {value: 2e-4, source: mine}\n"
    experiment = shelf(text)
    assert experiment.settings["optim.eps"].layer == "base"
    assert experiment.settings["optim.lr"].layer == "recipe"
    assert experiment.settings["optim.lr"].replaced == (
        ("default", 1e-6, "default"),
        ("base", 1e-4, "ground"),
    )


def test_a_chain_of_two_bases_is_refused(shelf):
    (shelf.folder / "a.yaml").write_text("summary: a\n")
    (shelf.folder / "b.yaml").write_text("summary: b\nextends: a\n")
    message = refusal(shelf, HEAD + "extends: b\nsettings:\n" + MODEL)
    assert "recipe trial extends b, which extends a" in message


def test_an_unknown_base_names_who_asks_and_the_nearest(shelf):
    (shelf.folder / "ground.yaml").write_text("summary: base\n")
    message = refusal(shelf, HEAD + "extends: grund\nsettings:\n" + MODEL)
    assert "unknown recipe grund (extended by trial); nearest: ground" in message


VARIANTS = """
variants:
  fast:
    summary: A larger step.
    settings:
      optim:
        lr: {value: 1e-2, source: "ours: fast"}
        eps: {value: 1e-6, source: "ours: fast"}
  slow:
    summary: A smaller step.
    settings:
      optim:
        lr: {value: 1e-5, source: "ours: slow"}
"""


def test_variants_apply_in_order_and_remember_what_they_replaced(shelf):
    experiment = shelf(
        HEAD + "settings:\n" + MODEL + VARIANTS, variants=["fast", "slow"], overrides=["optim.lr=3e-3"]
    )
    assert experiment.variants == ("fast", "slow")
    setting = experiment.settings["optim.lr"]
    assert (setting.value, setting.source, setting.layer) == (3e-3, "command line", "--set")
    assert setting.replaced == (
        ("default", 1e-6, "default"),
        ("variant fast", 1e-2, "ours: fast"),
        ("variant slow", 1e-5, "ours: slow"),
    )
    assert experiment.settings["optim.eps"].layer == "variant fast"
    assert shelf(HEAD + "settings:\n" + MODEL + VARIANTS, variants=["slow", "fast"]).config.optim.lr == 1e-2


def test_a_variant_replaces_a_whole_mapping(shelf):
    text = (
        HEAD + "settings:\n" + MODEL + "  environment:\n    options: {value: {a: 1, b: 2}, source: x}\n"
        "variants:\n  v:\n    summary: v\n    settings: {environment: {options: {value: {a: 3}, source: y}}}\n"
    )
    assert shelf(text).config.environment.options == {"a": 1, "b": 2}
    assert shelf(text, variants="v").config.environment.options == {"a": 3}


def test_an_unknown_variant_names_the_nearest(shelf):
    message = refusal(shelf, HEAD + "settings:\n" + MODEL + VARIANTS, variants=["fats"])
    assert message == "unknown variant fats (of recipe trial); nearest: fast, slow"


def test_a_revision_of_digits_stays_text(shelf):
    text = (
        HEAD
        + "settings:\n  model:\n    id: {value: a/b, source: x}\n    revision: {value: 0012, source: x}\n"
    )
    assert shelf(text).config.model.revision == "0012"


def test_the_first_engine_is_the_default(shelf):
    text = "summary: x\nengines: [megatron, local]\nsettings:\n" + MODEL
    assert shelf(text).engine == "megatron"
    assert shelf(text, engine="local").engine == "local"
    assert "it runs on megatron, local" in refusal(shelf, text, engine="molt")
    assert "unknown engine moltt; nearest: molt" in refusal(shelf, text, engine="moltt")


def test_a_recipe_without_engines_only_serves_as_a_base(shelf):
    message = refusal(shelf, "summary: x\nsettings:\n" + MODEL)
    assert message == "recipe trial names no engines: it only serves other recipes as a base"
    assert available_recipes(shelf.folder) == {}


def test_a_list_of_recipes_shows_engines_variants_and_needs(shelf):
    shelf(HEAD + "requires: [a GPU]\nsettings:\n" + MODEL + VARIANTS)
    listed = available_recipes(shelf.folder)["trial"]
    assert listed.summary == "A test."
    assert listed.engines == ("local",)
    assert listed.requires == ("a GPU",)
    assert dict(listed.variants) == {"fast": "A larger step.", "slow": "A smaller step."}


@pytest.mark.parametrize(
    "name",
    ["quikstart", "", "../recipes/quickstart", "/etc/passwd", "a\0b", "x" * 10_000, "quickstart\n", "."],
)
def test_an_unknown_recipe_names_the_nearest(name):
    with pytest.raises(SettingError, match="unknown recipe") as caught:
        load_experiment(name)
    assert "; nearest: " in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("path", ["/nowhere/x.yaml", "a\0b.yaml", "x" * 10_000 + ".yaml", "/dev/.yaml"])
def test_a_path_that_is_no_file_is_refused(path):
    with pytest.raises(SettingError, match="is not a file"):
        load_experiment(path)


def test_a_pipe_is_never_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SettingError, match="is not a file"):
        load_experiment("pipe", recipes_dir=tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "trial.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="cannot be read"):
        load_experiment("trial", recipes_dir=tmp_path)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(SettingError, match="does not exist"):
        load_experiment("quickstart", recipes_dir=tmp_path / "nowhere")


def test_a_recipe_of_ones_own_is_given_by_its_path_and_may_extend_a_shipped_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + "extends: base\nsettings:\n" + MODEL)
    experiment = load_experiment(str(path))
    assert experiment.recipe == "mine"
    assert experiment.settings["optim.weight_decay"].layer == "base"
    assert load_experiment(path).config == experiment.config


def test_a_base_beside_a_file_goes_before_a_shipped_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + "extends: base\nsettings:\n" + MODEL)
    (tmp_path / "base.yaml").write_text("summary: b\nsettings: {seed: {value: 7, source: x}}\n")
    assert load_experiment(str(path)).config.seed == 7
