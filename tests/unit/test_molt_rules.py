"""Molt's silent changes and late errors: each is told before a launch."""

import math

import pytest
from molt_rows import BASE, ROWS, SILENT
from published import ON_MOLT, errors_of, flags_of, review_of

from flashreinforce_molt.molt.interface import arguments, defaults, mistake, molt_options
from flashreinforce_molt.molt.options import FLASH_OPTIONS
from flashreinforce_molt.review.layout import plain
from flashreinforce_molt.review.molt_extras import CHANGES, HARMLESS, REFUSED, is_secret
from flashreinforce_molt.review.molt_flags import rows_for
from flashreinforce_molt.review.molt_rules import RULES, predict, refusals
from flashreinforce_molt.review.text import page


def test_a_sound_command_is_not_refused():
    values, silent = predict(BASE)
    assert refusals(values) == []
    assert silent == []


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_table_is_refused(row):
    changes, message = ROWS[row]
    assert any(message in said for said in refusals(predict({**BASE, **changes})[0]))


@pytest.mark.parametrize("row", SILENT)
def test_every_silent_change_is_named(row):
    changes, (name, value) = SILENT[row]
    assert (name, value) in [change[:2] for change in predict({**BASE, **changes})[1]]


def test_every_rule_refuses_something_of_the_table():
    values = [predict({**BASE, **changes})[0] for changes, _ in ROWS.values()]
    idle = [rule.__name__ for rule in RULES if not any(_said(rule, each) for each in values)]
    assert idle == []
    assert all(rule.__doc__ for rule in RULES)


def _said(rule, values):
    try:
        return rule(values)
    except ValueError:  # a band of three values, which only its own rule reads
        return None


def test_one_bound_becomes_a_band_from_minus_infinity():
    assert predict(BASE)[0]["algo.advantage.is_correction_threshold"] == [-math.inf, 3e-3]


def test_a_silent_change_is_an_error_of_the_review_unless_it_is_written_out():
    message = "rollout.in_flight=512 (from recipe) exceeds train.batch_size=128 (from recipe)"
    assert message in errors_of("r1", "molt.partial_rollout=false")[0]
    assert flags_of(review_of("r1"))["train.partial_rollout_enable"] is True
    message = (
        "molt.prefix_caching=false (from --set) contradicts molt.routing_replay=true (from variant stability)"
    )
    assert message in errors_of("moe", "stability", "molt.prefix_caching=false")[0]
    assert flags_of(review_of("moe", "stability"))["vllm.enable_prefix_caching"] is True


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "molt.flags.vllm.blok_size=128",
            "unknown flag molt.flags.vllm.blok_size (from --set); nearest: vllm.block_size",
        ),
        ("molt.flags.rollout.top_p=0.9", "molt.flags.rollout.top_p (from --set) is decided by rollout.top_p"),
        ("molt.flags.train.force_on_policy=false", "is fixed here; leave it out"),
        ("molt.flags.vllm.block_size=lots", "--vllm.block_size lots must be a whole number"),
        ("molt.flags.vllm.moe_backend=3", "--vllm.moe_backend 3 must be text"),
        ("molt.flags.algo.kl.estimator=k9", "--algo.kl.estimator k9 is not one of k1, k2, k3"),
        ("molt.flags.vllm.enforce_eager=1", "--vllm.enforce_eager 1 must be true or false"),
        ("molt.flags.reward.clip_range=[0]", "takes 2 values"),
        ("molt.flags.eval.batch_size=[1]", "takes one value, not a list"),
        ("molt.flags.eval.batch_size=0", "--eval.batch_size 0 must be at least 1"),
        ("molt.flags.logger.wandb.key=abcdefgh1", "export WANDB_API_KEY instead"),
        ("molt.flags.rollout.micro_batch_size=0", "--rollout.micro_batch_size 0 must be at least 1"),
        ("molt.flags.rollout.max_tokens_per_gpu=-3", "--rollout.max_tokens_per_gpu -3 must be at least 1"),
        ("molt.flags.vllm.data_parallel_size=2", "takes GPUs that the plan does not count"),
        ("molt.flags.vllm.pipeline_parallel_size=2", "takes GPUs that the plan does not count"),
        ("molt.flags.ckpt.load_enable=true", "use --resume instead"),
    ],
)
def test_a_flag_of_molt_is_checked_by_name_type_choice_and_rule(override, message):
    assert message in errors_of("r1", override)[0]


def test_a_flag_of_molt_that_fits_is_launched():
    review = review_of("r1", "molt.flags.vllm.enforce_eager=true", "molt.flags.vllm.block_size=128")
    assert review.errors == ()
    words = " ".join(review.command)
    assert "--vllm.enforce_eager" in words
    assert "--vllm.block_size 128" in words


def test_every_flag_of_the_table_exists_in_molt_once():
    rows = [row.flag for row in rows_for(review_of("r1").experiment.config)]
    assert len(rows) == len(set(rows))
    assert set(rows) <= set(molt_options())
    assert {option.dest for option in FLASH_OPTIONS} <= set(rows)


def test_every_setting_named_by_the_table_exists():
    known = set(review_of("r1").experiment.settings)
    assert {name for row in rows_for(review_of("r1").experiment.config) for name in row.settings} <= known


def test_switches_are_spelt_as_the_parser_wants_them():
    words = arguments(
        {
            "fsdp.packing_samples": False,
            "train.force_on_policy": True,
            "vllm.enable_prefix_caching": False,
            "flash.importance_correction": True,
            "algo.advantage.is_correction_threshold": [math.inf],
            "actor.adam.betas": [0.9, 0.95],
            "eval.steps": -1,
        }
    )
    assert words == [
        "--train.force_on_policy",
        "--no-vllm.enable_prefix_caching",
        "--flash.importance_correction",
        *("--algo.advantage.is_correction_threshold", "inf"),
        *("--actor.adam.betas", "0.9", "0.95"),
        *("--eval.steps", "-1"),
    ]


def test_the_described_defaults_fit_their_own_description():
    for name, option in molt_options().items():
        if option.default is not None:
            assert mistake(option, option.default) is None, name
    assert defaults()["ckpt.max_mem"] == math.inf


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["r1"], ("seq", [3e-3], "flash", "flash_trajectory")),
        (["r1", "no_trust"], ("seq", [math.inf], "flash", "flash_trajectory")),
        (["alfworld", "no_is"], ("seq", [math.inf], "flash", "flash_trajectory")),
        (["r1", "objective.gate=token"], ("token", [3e-3], "flash", "flash_trajectory")),
        (["r1", "molt.native=false"], ("seq", [3e-3], "ppo", "flash_reinforce")),
        (["python_tools", "grpo"], ("off", None, "ppo", "grpo")),
    ],
)
def test_gate_and_correction_become_molts_flags(words, wanted):
    flags = flags_of(review_of(*words))
    level, threshold, loss, estimator = wanted
    assert flags["algo.advantage.is_correction_level"] == level
    assert flags.get("algo.advantage.is_correction_threshold") == threshold
    assert flags["actor.loss_mode"] == loss
    assert flags["algo.advantage.estimator"] == estimator


def test_batches_are_counted_in_prompts_and_trajectories():
    flags = flags_of(review_of("python_tools", "grpo"))
    assert flags["rollout.batch_size"] == 32
    assert flags["rollout.n_samples_per_prompt"] == 4
    assert flags["train.batch_size"] == 128
    assert flags["rollout.vllm_generate_batch_size"] == 4
    assert flags_of(review_of("alfworld"))["actor.lr_scheduler"] == "constant"
    assert flags_of(review_of("r1"))["actor.lr_scheduler"] == "cosine_with_min_lr"


def test_no_published_experiment_relies_on_a_silent_change():
    for names in ON_MOLT:
        values, silent = predict(flags_of(review_of(*names)))
        assert silent == [], names
        assert refusals(values) == [], names


@pytest.mark.parametrize("name", sorted(molt_options()))
def test_no_whole_number_of_molt_ends_in_a_traceback(name):
    option = molt_options()[name]
    if option.type is int and option.kind == "value" and not option.several:
        for value in (-2, 0, 2):
            review_of("qwen_math", f"molt.flags.{name}={value}")
        if option.default is None or option.default >= 1:
            assert errors_of("qwen_math", f"molt.flags.{name}=0")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.clip_range=[0, 1]", "changes the method: rewards are clipped"),
        ("actor.freezing_steps=5", "changes the method: the first updates change nothing"),
        ("actor.lora_dim=8", "changes the method: adapters"),
        ("vllm.dtype=float16", "changes the method: rollouts are sampled in another precision"),
        ("algo.advantage.gamma=0.9", "changes the method: the advantages"),
        ("actor.aux_loss_coef=0.1", "changes the method: a loss of the router"),
        ("vllm.decode_context_parallel_size=2", "is not reviewed"),
        ("fsdp.sequence_parallel=true", "is not reviewed"),
    ],
)
def test_a_flag_that_changes_the_method_or_that_nothing_covers_is_warned_about(override, message):
    said = [
        check.message
        for check in review_of("r1", f"molt.flags.{override}").checks
        if check.level == "warning"
    ]
    assert any(message in each and "(from --set)" in each for each in said), said


def test_every_listed_flag_exists():
    for start in (*REFUSED, *CHANGES, *HARMLESS):
        assert any(name.startswith(start) for name in molt_options()), start
    assert [name for name in molt_options() if is_secret(name)] == ["logger.wandb.key"]


def test_packing_is_refused_with_one_message_whatever_else_is_set():
    for words in ([], ["model.attention=flash_attention_2"], ["molt.native=false"]):
        (message,) = errors_of("r1", "molt.packing=true", *words)
        assert message.startswith("molt.packing=true (from --set) is refused: ")
        assert message.endswith("set molt.packing=false")


def test_a_secret_never_enters_molts_command():
    review = review_of("r1", "environment.options.api_key=hunter2")
    (message,) = [check.message for check in review.errors]
    assert message.startswith("environment.options.api_key (from --set) would stand in the command")
    assert "hunter2" not in plain(page(review, 120))
    (error,) = errors_of("r1", "data.path=https://me:hunter2@example.org/x.parquet")
    assert error.startswith("--data.prompt_dataset (--set) holds a secret")


def test_a_piece_of_a_hidden_revision_is_hidden_too():
    text = plain(page(review_of("r1", "model.revision=hf_Abcdefgh12345678"), 120))
    assert "hf_" not in text
    assert "Abcdefgh" not in text


def test_partial_rollout_explains_the_warning_that_molt_prints():
    said = {check.id: check.message for check in review_of("r1").checks}
    assert (
        "Molt warns that its masking of stale tokens is inactive, which is right here"
        in said["partial-rollout"]
    )
