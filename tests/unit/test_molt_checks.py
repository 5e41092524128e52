import math

import pytest

pytest.importorskip("molt", reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh")

from molt_command import molt_command

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.molt.cli_block import parse_molt_command
from flashreinforce_molt.molt.native_checks import is_native, refuse_unproven
from flashreinforce_molt.recipes import available_recipes, resolve_experiment
from flashreinforce_molt.review.commands import Request
from flashreinforce_molt.review.document import review_experiment

PUBLISHED = [
    (name, variant)
    for name, recipe in available_recipes().items()
    if "molt" in recipe.engines
    for variant in (None, *recipe.variants)
]


def args_of(**changes):
    return parse_molt_command(
        molt_command({name.replace("__", "."): value for name, value in changes.items()})
    ).args


def test_the_method_as_published_passes():
    args = args_of()
    assert is_native(args)
    refuse_unproven(args)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train__force_on_policy": None}, "--train.force_on_policy"),
        (
            {"fsdp__packing_samples": True, "fsdp__attn_implementation": "te"},
            "--fsdp.packing_samples: our loss",
        ),
        ({"fsdp__tp_size": 2, "actor__num_gpus_per_node": 2}, "--fsdp.tp_size"),
        ({"fsdp__cp_size": 2, "actor__num_gpus_per_node": 2}, "--fsdp.cp_size"),
        ({"algo__kl__init_coef": 0.1}, "no reference KL"),
        ({"algo__advantage__is_correction_level": "off"}, "records behaviour log-probs only"),
        ({"rollout__temperature": 0}, "--rollout.temperature"),
        ({"algo__advantage__estimator": "flash_reinforce"}, "flash and flash_trajectory belong together"),
        ({"actor__loss_mode": "ppo"}, "flash and flash_trajectory belong together"),
        ({"flash__delta": 0.01}, "is_correction_threshold 0.003 contradicts --flash.delta 0.01"),
        ({"flash__gate": "none"}, r"contradicts --flash.delta (gate off)"),
        ({"flash__aggregation": "token-mean"}, "contradicts --flash.aggregation token-mean; use token-mean"),
        ({"train__batch_size": 100, "train__micro_batch_size": 8}, "not divisible"),
    ],
)
def test_what_is_not_proven_or_contradicts_is_refused_by_name(changes, words):
    with pytest.raises(SettingError) as error:
        refuse_unproven(args_of(**changes))
    assert words in str(error.value)


def test_all_problems_come_at_once():
    with pytest.raises(SettingError) as error:
        refuse_unproven(
            args_of(
                algo__kl__init_coef=0.1, flash__delta=0.01, train__batch_size=7, train__micro_batch_size=2
            )
        )
    assert len(error.value.problems) == 3


@pytest.mark.parametrize("threshold", [3e-3, math.inf])
def test_molts_threshold_repeats_ours_or_is_infinite(threshold):
    refuse_unproven(args_of(algo__advantage__is_correction_threshold=threshold))


@pytest.mark.parametrize(("recipe", "variant"), PUBLISHED, ids=lambda word: word or "as published")
def test_every_published_setting_is_accepted_by_molts_own_checks_and_by_ours(recipe, variant):
    variants = (variant,) if variant else ()
    review = review_experiment(
        resolve_experiment(recipe, variants=variants, engine="molt"), Request(recipe, variants)
    )
    assert review.command[1:3] == ("-m", "flashreinforce_molt.molt.launch")
    args = parse_molt_command(review.command[3:]).args
    assert is_native(args) == (variant != "grpo")
    assert args.algo.advantage.estimator == ("grpo" if variant == "grpo" else "flash_trajectory")
    if is_native(args):
        refuse_unproven(args)
