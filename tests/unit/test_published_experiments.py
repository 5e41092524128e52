"""The five published experiments and their variants: what they say, and what a mistake in them is answered with."""

import pytest
from published import EVERY, errors_of, flags_of, review_of

from flashreinforce_molt.config.catalogue import catalogue
from flashreinforce_molt.config.locks import DATASETS, PACKAGES, lock
from flashreinforce_molt.config.validate import ENVIRONMENTS
from flashreinforce_molt.config.validate_molt import IDLE_ON_MOLT
from flashreinforce_molt.environments import SUITES
from flashreinforce_molt.molt.interface import mistake, molt_options
from flashreinforce_molt.recipes import available_recipes, load_experiment
from flashreinforce_molt.review.molt_flags import rows_for

PUBLISHED = {
    "r1": {
        "train.batch_size": 128,
        "rollout.max_context_tokens": 9216,
        "rollout.max_new_tokens": 8192,
        "environment.max_turns": 1,
        "objective.delta": 3e-3,
        "rollout.in_flight": 512,
        "rollout.queue_depth": 8,
        "data.passes": 350,
        "data.rows": 1460,
        "evaluation.every": 128,
        "evaluation.samples": 32,
        "evaluation.temperature": 0.6,
        "evaluation.top_p": 0.95,
        "model.revision": "ad9f0ae0864d7fbcd1cd905e3c6c5b069cc8b562",
    },
    "qwen_math": {
        "train.batch_size": 128,
        "rollout.max_context_tokens": 6144,
        "rollout.max_new_tokens": 4096,
        "objective.delta": 3e-3,
        "rollout.in_flight": 16,
        "rollout.queue_depth": 1,
        "data.passes": 68,
        "data.rows": 7500,
        "evaluation.every": 100,
        "evaluation.samples": 4,
        "evaluation.temperature": 0.7,
        "evaluation.top_p": 0.7,
        "model.revision": "4a83ca6e4526a4f2da3aa259ec36c259f66b2ab2",
    },
    "python_tools": {
        "train.batch_size": 128,
        "rollout.max_context_tokens": 8192,
        "rollout.max_new_tokens": 6144,
        "environment.max_turns": 10,
        "objective.delta": 1e-3,
        "data.passes": 68,
        "evaluation.samples": 4,
        "model.revision": "a09a35458c702b33eeacc393d103063234e8bc28",
    },
    "moe": {
        "train.batch_size": 128,
        "rollout.max_context_tokens": 18432,
        "environment.max_turns": 10,
        "objective.delta": 1e-2,
        "molt.routing_replay": False,
        "data.passes": 17,
        "evaluation.samples": 4,
        "model.revision": "ad44e777bcd18fa416d9da3bd8f70d33ebb85d39",
    },
    "alfworld": {
        "train.batch_size": 64,
        "rollout.max_context_tokens": 16384,
        "rollout.max_new_tokens": 8192,
        "environment.max_turns": 50,
        "objective.delta": 1e-3,
        "objective.negative_token_fraction": 0.9,
        "optim.schedule": "constant",
        "data.passes": 20,
        "data.rows": 1024,
        "evaluation.every": 40,
        "evaluation.samples": 3,
        "evaluation.temperature": 1.0,
        "evaluation.top_p": 0.7,
        "model.revision": "a09a35458c702b33eeacc393d103063234e8bc28",
    },
}
SHARED = {
    "train.rollouts_per_prompt": 1,
    "train.epochs_per_batch": 1,
    "optim.lr": 1e-6,
    "optim.weight_decay": 0.1,
    "optim.max_grad_norm": 1.0,
    "algorithm.kl_coefficient": 0.0,
    "algorithm.entropy_coefficient": 0.0,
    "rollout.temperature": 1.0,
    "rollout.top_p": 1.0,
    "model.dtype": "bfloat16",
}
VARIANTS = {
    ("r1", "gate_5e3"): {"objective.delta": 5e-3},
    ("r1", "quick_start"): {"objective.delta": 5e-3, "data.passes": 1000},
    ("r1", "no_trust"): {"objective.gate": "none"},
    ("qwen_math", "gate_1e3"): {"objective.delta": 1e-3},
    ("qwen_math", "negative_q09"): {"objective.negative_token_fraction": 0.9},
    ("qwen_math", "negative_q02"): {"objective.negative_token_fraction": 0.2},
    ("qwen_math", "five_benchmark_eval16"): {"evaluation.samples": 16},
    ("python_tools", "negative_q09"): {"objective.negative_token_fraction": 0.9},
    ("python_tools", "negative_q02"): {"objective.negative_token_fraction": 0.2},
    ("python_tools", "negative_q00"): {"objective.negative_token_fraction": 0.0},
    ("python_tools", "token_mean"): {"objective.aggregation": "token-mean"},
    ("python_tools", "constant_length"): {
        "objective.aggregation": "constant-length",
        "objective.constant_length": 6144,
    },
    ("python_tools", "grpo"): {"train.rollouts_per_prompt": 4, "algorithm.clip": 0.2, "data.passes": 17},
    ("moe", "trust_ablation"): {
        "environment.max_turns": 20,
        "rollout.max_context_tokens": 16384,
        "rollout.max_new_tokens": 14336,
        "objective.delta": 3e-3,
        "rollout.queue_depth": 4,
    },
    ("moe", "no_trust"): {"objective.gate": "none"},
    ("moe", "no_is"): {"objective.importance_correction": False},
    ("moe", "stability"): {"molt.routing_replay": True, "objective.delta": 1e-3},
    ("alfworld", "negative_q02"): {"objective.negative_token_fraction": 0.2},
    ("alfworld", "no_is"): {"objective.importance_correction": False},
    ("alfworld", "grpo"): {"train.rollouts_per_prompt": 8, "data.passes": 3},
}


def test_every_recipe_and_variant_is_reviewed_without_an_error():
    for names in EVERY:
        review = review_of(*names)
        assert review.errors == (), names
        assert all(flag.source for flag in review.flags), names
        if review.experiment.engine == "molt":
            for name, value in flags_of(review).items():
                assert mistake(molt_options()[name], value) is None, (names, name)


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_the_published_numbers_are_those_of_the_recipe(recipe):
    settings = load_experiment(recipe).settings
    wanted = {**SHARED, **PUBLISHED[recipe]}
    if recipe != "alfworld":
        wanted |= {"optim.schedule": "cosine", "optim.warmup_fraction": 0.03, "optim.min_lr_fraction": 0.1}
    assert {name: settings[name].value for name in wanted} == wanted


def test_every_published_variant_ships_and_states_only_what_it_changes():
    shipped = {
        (recipe, variant)
        for recipe, listed in available_recipes().items()
        if "molt" in listed.engines
        for variant in listed.variants
    }
    assert shipped == set(VARIANTS)
    for (recipe, variant), wanted in VARIANTS.items():
        plain, changed = (
            load_experiment(recipe).settings,
            load_experiment(recipe, variants=[variant]).settings,
        )
        assert {name: changed[name].value for name in wanted} == wanted, variant
        said = [setting for setting in changed.values() if setting.layer == f"variant {variant}"]
        assert {setting.name for setting in said} >= set(wanted)
        assert any(setting.value != plain[setting.name].value for setting in said)


def test_every_value_of_a_recipe_names_a_publication_or_says_ours():
    known = (
        "paper",
        "published",
        "upstream",
        "Molt's",
        "ours: ",
        "read in several",
        "numerical guard",
        "follows from",
    )
    for names in EVERY:
        for setting in load_experiment(names[0], variants=names[1:]).settings.values():
            if setting.written:
                assert setting.source.startswith(known), (names, setting.name, setting.source)


def test_the_two_published_gates_of_r1_are_named_as_a_contradiction():
    source = load_experiment("r1").settings["objective.delta"].source
    assert "3e-3" in source
    assert "5e-3" in source
    assert "contradict" in source


def test_pins_are_whole_commits_and_an_unknown_one_is_never_invented():
    for names in EVERY:
        for pin in review_of(*names).pins:
            if pin.kind in ("model", "data") and pin.version is not None:
                assert len(pin.version) == 40, pin
                int(pin.version, 16)
    assert list(lock(DATASETS)) == ["BytedTsinghua-SIA/DAPO-Math-17k"]
    assert lock(PACKAGES)["molt-rl"]["version"] == "0.2.1"
    warned = [check.message for check in review_of("r1").checks if check.id == "data-pins"]
    assert warned[0].startswith("UNPINNED: sail/Sanity-Test-R1D-1.5B (data.id), ")


def test_later_variants_and_overrides_win_and_the_review_keeps_what_they_replaced():
    review = review_of("moe", "trust_ablation", "stability", "objective.delta=0.02")
    delta = review.experiment.settings["objective.delta"]
    assert (delta.value, delta.layer) == (0.02, "--set")
    assert [(layer, value) for layer, value, _ in delta.replaced[-3:]] == [
        ("recipe", 1e-2),
        ("variant trust_ablation", 3e-3),
        ("variant stability", 1e-3),
    ]


REFUSED = [
    ("r1", ["train.rollouts_per_prompt=4"], "the method compares a reward with its batch"),
    (
        "r1",
        ["train.epochs_per_batch=2"],
        "the second epoch trains on data that the updated weights did not sample",
    ),
    ("r1", ["rollout.temperature=0"], "must be above 0"),
    ("r1", ["rollout.queue_depth=0"], "must be at least 1"),
    ("r1", ["rollout.top_p=0.9"], "so the importance ratio is wrong; use 1.0"),
    ("r1", ["rollout.max_new_tokens=9216"], "leaves no room for the prompt"),
    ("r1", ["rollout.max_context_tokens=200000"], "exceeds the 131,072 positions"),
    ("qwen_math", ["model.allow_longer_context=false"], "exceeds the 4,096 positions"),
    ("r1", ["train.batch_size=130"], "is no multiple of 4 = 4 data-parallel replicas"),
    ("r1", ["train.micro_batch_size=48"], "use 192"),
    ("r1", ["cluster.rollout_engines=5"], "4 GPUs for the learner + 5 for rollouts are more than the 8"),
    ("r1", ["cluster.actor_nodes=2"], "cluster.actor_nodes=2 (from --set) exceeds cluster.nodes=1 (default)"),
    (
        "r1",
        ["cluster.expert_parallel=2"],
        "needs experts, but deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B has none",
    ),
    ("r1", ["molt.routing_replay=true"], "needs experts"),
    ("moe", ["cluster.expert_parallel=12"], "does not divide the 128 experts"),
    ("moe", ["cluster.expert_parallel=32"], "does not divide the 16 GPUs of the learner"),
    ("moe", ["cluster.rollout_tensor_parallel=3"], "does not divide the 32 attention heads"),
    ("r1", ["algorithm.kl_coefficient=0.1"], "has no reference"),
    ("r1", ["algorithm.kl_coefficient=0.1", "algorithm.kl_reference=rollout"], "fails at run time"),
    ("r1", ["algorithm.kl_coefficient=0.1", "algorithm.kl_reference=model"], "our loss has no KL term"),
    ("python_tools", ["grpo", "train.rollouts_per_prompt=1"], "leaves every advantage 0"),
    ("python_tools", ["grpo", "molt.native=true"], "is Molt's own"),
    (
        "python_tools",
        ["grpo", "train.rollouts_per_prompt=3"],
        "is no multiple of train.rollouts_per_prompt=3",
    ),
    ("python_tools", ["grpo", "rollout.queue_depth=2"], "Molt refuses stale data without correction"),
    ("r1", ["molt.partial_rollout=false"], "Molt would silently turn partial rollout on"),
    (
        "moe",
        ["stability", "rollout.in_flight=256", "molt.partial_rollout=true"],
        "loses the captured routing",
    ),
    ("r1", ["engine.mode=sync"], "contradicts molt.partial_rollout=true"),
    ("moe", ["engine.mode=sync"], "is stale all the same"),
    ("r1", ["rollout.publication=between_trajectories"], "weights change in the middle of trajectories"),
    ("r1", ["rollout.max_policy_lag=4"], "Molt cannot do this"),
    ("r1", ["rollout.top_k=50", "rollout.allow_truncated_sampling=true"], "Molt cannot do this"),
    ("r1", ["model.dtype=float32"], "Molt computes in bfloat16"),
    ("r1", ["molt.packing=true"], "is not proven on packed rows"),
    ("r1", ["cluster.tensor_parallel=2"], "is not proven with our loss"),
    ("r1", ["molt.native=false", "objective.negative_token_fraction=0.9"], "needs our loss"),
    (
        "r1",
        ["molt.native=false", "objective.aggregation=constant-length", "objective.constant_length=9"],
        "unknown to Molt",
    ),
    ("r1", ["data.path=null"], "data.path is missing"),
    ("r1", ["data.max_rows=100"], "100 training tasks do not fill one batch of 128 prompts"),
    ("r1", ["train.updates=5"], "set data.passes=1 and data.max_rows=640 instead"),
    ("r1", ["train.updates=50"], "set data.passes=5 instead"),
    ("r1", ["evaluation.suites.x.foo=1"], "has the unknown key foo"),
    ("quickstart", ["algorithm.name=grpo"], "is not available on the engine local"),
    ("quickstart", ["algorithm.kl_coefficient=0.1"], "is not available on the engine local"),
    ("quickstart", ["train.rollouts_per_prompt=2"], "samples each prompt once"),
]


@pytest.mark.parametrize(("recipe", "words", "message"), REFUSED)
def test_a_mistake_is_refused_with_its_reason(recipe, words, message):
    assert message in " | ".join(errors_of(recipe, *words))


def test_a_misspelt_key_names_the_nearest_three():
    (message,) = errors_of("r1", "objective.detla=1e-3")
    assert message == (
        "unknown setting objective.detla (from --set); nearest: objective.delta, objective.gate, "
        f"{message.rpartition(', ')[2]}"
    )
    assert message.count(",") == 2


def test_a_misspelt_environment_is_told_and_the_known_names_are_those_of_the_registry():
    assert errors_of("r1", "environment.name=maths") == [
        "environment.name=maths (from --set) is unknown; nearest: math, python_tool, alfworld; "
        "your own is package.module:Class"
    ]
    assert errors_of("r1", "environment.name=mine.games:Chess") == []
    assert set(SUITES) <= set(ENVIRONMENTS)


def test_alfworld_wants_the_folder_of_its_games(monkeypatch, tmp_path):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    found = {check.id: check for check in review_of("alfworld").checks}["alfworld-data"]
    assert found.level == "warning"
    assert "ALFWORLD_DATA is not set" in found.message
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    assert "ALFWORLD_DATA names no folder" in errors_of("alfworld")[0]
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert errors_of("alfworld") == []


def test_settings_that_only_molt_reads_are_not_ignored_silently_on_the_local_engine():
    review = review_of("quickstart", "cluster.nodes=2")
    warned = [check.message for check in review.checks if check.level == "warning"]
    assert warned == ["cluster.nodes=2 (from --set) has no effect on the engine local"]


def test_a_variant_of_molts_own_flags_is_possible_for_the_base_method():
    review = review_of("qwen_math", "molt.native=false")
    assert review.errors == ()
    flags = flags_of(review)
    assert flags["algo.advantage.estimator"] == "flash_reinforce"
    assert flags["actor.loss_mode"] == "ppo"
    assert "flash.delta" not in flags


def test_derived_values_never_replace_written_ones():
    assert review_of("r1").experiment.settings["train.updates"].value == 12 * 350
    assert review_of("r1", "molt.model_path=/models/r1").experiment.config.molt.model_path == "/models/r1"
    assert set(catalogue()) == set(review_of("r1").experiment.settings)


@pytest.mark.parametrize(
    "words", [["model.id=Qwen/Qwen2.5-7B-Instruct"], ["model.id=Qwen/Qwen2.5-7B-Instruct", "seed=1"]]
)
def test_another_model_never_keeps_the_revision_of_the_first(words):
    review = review_of("r1", *words)
    setting = review.experiment.settings["model.revision"]
    assert setting.value is None
    assert "belongs to deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B, but model.id=" in setting.source
    assert [pin.version for pin in review.pins if pin.kind == "model"] == [None]
    assert flags_of(review)["actor.model_name_or_path"] == "models/Qwen2.5-7B-Instruct"
    assert any("UNPINNED; set model.revision" in check.message for check in review.checks)


def test_a_revision_of_the_same_layer_or_of_the_same_model_stays():
    other = "a" * 40
    review = review_of("r1", f"model.revision={other}", "model.id=Qwen/Qwen2.5-7B-Instruct")
    assert review.experiment.config.model.revision == other
    same = review_of("r1", "model.id=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    assert same.experiment.config.model.revision == review_of("r1").experiment.config.model.revision


def test_another_data_set_never_keeps_the_files_of_the_first():
    review = review_of("r1", "data.id=a/b")
    data = review.experiment.config.data
    assert (data.path, data.prepare, data.rows, data.revision) == (None, None, None, None)
    assert any(
        "data.path is missing (data/sanity_r1/train.parquet belongs to sail/Sanity-Test-R1D-1.5B, but data.id=a/b"
        in message
        for message in errors_of("r1", "data.id=a/b")
    )
    assert errors_of("r1", "data.id=a/b", "data.path=data/b.jsonl", "data.rows=500") == []
    assert (
        "evaluation.suites.aime24 (from --set) needs path"
        in errors_of("r1", "evaluation.suites.aime24.id=a/b")[0]
    )


def test_a_synchronous_run_on_molt_needs_no_lag_bound():
    words = (
        "engine.mode=sync",
        "rollout.in_flight=128",
        "rollout.queue_depth=1",
        "molt.partial_rollout=false",
    )
    assert errors_of("r1", *words) == []
    assert flags_of(review_of("r1", *words))["train.force_sync_mode"] is True


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            ["python_tools", "grpo", "negative_q09"],
            "objective.negative_token_fraction=0.9 (from variant negative_q09)",
        ),
        (
            ["python_tools", "negative_q02", "grpo"],
            "objective.negative_token_fraction=0.2 (from variant negative_q02)",
        ),
        (
            ["python_tools", "grpo", "constant_length"],
            "objective.aggregation=constant-length (from variant constant_length)",
        ),
        (["alfworld", "grpo", "objective.gate=sequence"], "objective.gate=sequence (from --set)"),
        (["alfworld", "grpo", "objective.delta=0.01"], "objective.delta=0.01 (from --set)"),
        (["alfworld", "grpo", "objective.log_ratio_limit=5"], "objective.log_ratio_limit=5.0 (from --set)"),
        (
            ["alfworld", "grpo", "objective.ratio_gradient=through"],
            "objective.ratio_gradient=through (from --set)",
        ),
    ],
)
def test_an_ablation_of_the_method_on_grpo_is_refused_by_name(words, named):
    review = review_of(*words)
    assert any(f"{named} has no effect on GRPO" in check.message for check in review.errors), review.errors
    assert not any("entropy tokens; each update" in check.message for check in review.checks)


def test_what_has_no_effect_on_the_method_is_said():
    said = [
        check.message for check in review_of("r1", "algorithm.clip=0.3").checks if check.level == "warning"
    ]
    assert any("algorithm.clip=0.3 (from --set) has no effect" in message for message in said)
    said = [check.message for check in review_of("r1", "no_trust", "objective.delta=0.1").checks]
    assert any(
        "objective.delta=0.1 (from --set) has no effect: the gate is off" in message for message in said
    )
    assert errors_of("python_tools", "grpo", "token_mean") == []


def warnings_of(*words):
    return [check.message for check in review_of(*words).checks if check.level == "warning"]


def test_a_variant_published_beside_another_says_so_when_alone():
    said = "variant no_trust was published with trust_ablation, not alone; add --variant trust_ablation"
    assert said in warnings_of("moe", "no_trust")
    assert said not in warnings_of("moe", "trust_ablation", "no_trust")


def test_a_tool_that_the_model_never_sees_is_warned_about():
    assert any(
        "will not show the Python tool" in each for each in warnings_of("python_tools", "data.tools_key=null")
    )


def test_an_engine_that_no_machine_has_room_for_is_refused():
    words = [
        "cluster.nodes=2",
        "cluster.actor_nodes=2",
        "cluster.rollout_engines=1",
        "cluster.rollout_tensor_parallel=4",
    ]
    assert errors_of("python_tools", *words) == []
    (error,) = errors_of(
        "python_tools",
        *words,
        "cluster.actor_gpus_per_node=5",
        "train.batch_size=130",
        "rollout.in_flight=130",
    )
    assert "the machines hold 0 engines of cluster.rollout_tensor_parallel=4" in error


def test_every_setting_reaches_molt_or_says_that_it_does_not():
    read = {name for row in rows_for(review_of("r1").experiment.config) for name in row.settings}
    assert not read & {*IDLE_ON_MOLT}
    assert "engine.workers=3 (from --set) has no effect on the engine molt" in warnings_of(
        "r1", "engine.workers=3"
    )
    assert errors_of("r1", "engine.workers=3") == []
