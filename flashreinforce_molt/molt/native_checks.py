"""Which combinations with Molt's own machinery our loss refuses, by name, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.molt.options import ESTIMATOR, LOSS_MODE

_AGGREGATIONS = {"sample-mean": "seq-mean-token-mean", "token-mean": "token-mean"}
"""Ours -> the aggregation mode of Molt that means the same for trajectories of one row."""

_UNPROVEN: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    (
        "--train.force_on_policy",
        lambda a: not a.train.force_on_policy,
        "one optimizer step per fresh batch needs it",
    ),
    (
        "--fsdp.packing_samples",
        lambda a: a.fsdp.packing_samples,
        "our loss is not proven on packed rows; leave it off",
    ),
    (
        "--train.dynamic_batch_enable",
        lambda a: a.train.dynamic_batch_enable,
        "it needs packing; leave it off",
    ),
    (
        "--fsdp.tp_size",
        lambda a: a.fsdp.tp_size > 1,
        "our loss is not proven on tensor-parallel logits; use 1",
    ),
    (
        "--fsdp.cp_size",
        lambda a: a.fsdp.cp_size > 1,
        "our loss is not proven on context-parallel rows; use 1",
    ),
    ("--algo.kl.init_coef", lambda a: a.algo.kl.init_coef > 0, "the method has no reference KL; use 0"),
    (
        "--algo.advantage.score_centering_top_k",
        lambda a: a.algo.advantage.score_centering_top_k,
        "it replaces the importance ratio of the method; use 0",
    ),
    (
        "--algo.advantage.is_correction_level",
        lambda a: a.algo.advantage.is_correction_level == "off",
        "Molt records behaviour log-probs only with a correction on; use seq (--flash.* options decide what is done)",
    ),
    (
        "--rollout.temperature",
        lambda a: not a.rollout.temperature > 0,
        "the learner divides its logits by it",
    ),
)


def is_native(args: Any) -> bool:
    """Whether a command trains with our loss."""
    return args.actor.loss_mode == LOSS_MODE


def refuse_unproven(args: Any) -> None:
    """Raise one SettingError with every combination in Molt's namespace that our loss does not support."""
    problems = [f"{flag}: {reason}" for flag, broken, reason in _UNPROVEN if broken(args)]
    if (args.algo.advantage.estimator == ESTIMATOR) != is_native(args):
        problems.append(
            f"--actor.loss_mode {args.actor.loss_mode} with --algo.advantage.estimator "
            f"{args.algo.advantage.estimator}: {LOSS_MODE} and {ESTIMATOR} belong together"
        )
    problems += [*_contradictions(args), *_batch(args)]
    if problems:
        raise SettingError(*problems)


def _contradictions(args: Any) -> list[str]:
    """Molt's own flags that say something else than ours."""
    problems = []
    upper = args.algo.advantage.is_correction_threshold[-1]
    gated = args.flash.gate != "none" and args.flash.importance_correction
    ours = args.flash.delta if gated else math.inf
    if upper not in (ours, math.inf):
        problems.append(
            f"--algo.advantage.is_correction_threshold {upper:g} contradicts --flash.delta "
            f"{'(gate off)' if not gated else format(ours, 'g')}; give both the same value, or the threshold inf"
        )
    mode = _AGGREGATIONS.get(args.flash.aggregation)
    if mode is not None and args.actor.loss_agg_mode != mode:
        problems.append(
            f"--actor.loss_agg_mode {args.actor.loss_agg_mode} contradicts --flash.aggregation "
            f"{args.flash.aggregation}; use {mode}"
        )
    if args.actor.loss_agg_mode == "prompt-mean-token-mean":
        problems.append("--actor.loss_agg_mode prompt-mean-token-mean: our loss has no mean over prompts")
    return problems


def _batch(args: Any) -> list[str]:
    """What Molt would find out only after every engine and model has started."""
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node
    unit = args.train.micro_batch_size * ranks
    if args.train.batch_size % unit:
        return [
            f"--train.batch_size {args.train.batch_size} is not divisible by --train.micro_batch_size "
            f"{args.train.micro_batch_size} x {ranks} ranks"
        ]
    return []
