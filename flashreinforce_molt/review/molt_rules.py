"""Molt's rules between flags, told before a launch: what it refuses at once, refuses late, or changes silently.

`predict` computes what Molt makes of a command line: its defaults, our flags, and the values that it derives. Every
`refuse_*` looks at that and returns a message, or None. `interface.json` holds Molt's own words for the same rules,
and slow tests hold these functions against its real checks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flashreinforce_molt.config.experiment import Check, Experiment
from flashreinforce_molt.molt.interface import defaults, mistake, molt_options
from flashreinforce_molt.molt.options import LOSS_MODE, MOLT_VERSION
from flashreinforce_molt.review.molt_extras import check_extra_flags, check_secrets, too_small
from flashreinforce_molt.review.molt_flags import Flag, FlagRow, rows_for

Values = Mapping[str, Any]
_FLAG = re.compile(r"--([a-z_]+(?:\.[a-z_0-9]+)+)")
_GROUP_ESTIMATORS = ("rloo", "reinforce_baseline", "grpo", "dr_grpo")
_PACKED_ATTENTION = ("te", "flash_attention_2", "tilelang")


def predict(flags: Values) -> tuple[dict[str, Any], list[tuple[str, Any, str]]]:
    """What Molt hands to its trainer for these flags, and (name, value, why) of what it changed without being asked.

    Only changes that alter the run are listed; a default that it merely spells out is not.
    """
    values = defaults()
    for name, value in flags.items():
        option = molt_options()[name]
        values[option.dest] = (not value) if option.dest != name and option.kind == "switch" else value
    silent: list[tuple[str, Any, str]] = []

    def change(name: str, value: Any, why: str) -> None:
        silent.append((name, value, why))
        values[name] = value

    if values["ckpt.dcp_max_num"] is None:
        values["ckpt.dcp_max_num"] = values["ckpt.max_num"]
    threshold = values["algo.advantage.is_correction_threshold"]
    if len(threshold) == 1:
        values["algo.advantage.is_correction_threshold"] = [-math.inf, threshold[0]]
    if values["actor.eps_clip_low_high"] is None:
        values["actor.eps_clip_low_high"] = (0.2, 0.2)
    if values["algo.kl.init_coef"] is None:
        values["algo.kl.init_coef"] = 0.0
    if values["algo.kl.ref"] is None:
        values["algo.kl.ref"] = "rollout"
    in_flight = values["rollout.vllm_generate_batch_size"] or values["rollout.batch_size"]
    values["rollout.vllm_generate_batch_size"] = in_flight
    if in_flight > values["rollout.batch_size"] and not values["train.partial_rollout_enable"]:
        change("train.partial_rollout_enable", True, "more prompts are in flight than one batch holds")
    if values["data.max_images_per_prompt"] > 0 and values["fsdp.packing_samples"]:
        change("fsdp.packing_samples", False, "images cannot be packed")
    if values["train.routing_replay"] and not values["vllm.enable_prefix_caching"]:
        change("vllm.enable_prefix_caching", True, "routing replay needs it")
    if values["train.dynamic_batch_enable"] and values["rollout.max_tokens_per_gpu"] is None:
        limit = values["train.max_tokens_per_gpu"]
        change("rollout.max_tokens_per_gpu", limit, "dynamic batches need it")
    return values, silent


def refuse_missing(v: Values) -> str | None:
    """Molt needs a model, engines and an agent."""
    for name in ("actor.model_name_or_path", "vllm.num_engines", "train.agent_path"):
        if not v[name]:
            return f"--{name} is missing"
    return None


def refuse_distillation(v: Values) -> str | None:
    """The teacher's gradient is none of ours, and Molt would rewrite four flags for it."""
    if v["algo.advantage.estimator"] == "on_policy_distill":
        return "--algo.advantage.estimator on_policy_distill trains on a teacher, not on rewards"
    return None


def refuse_threshold(v: Values) -> str | None:
    """One bound, or two."""
    if len(v["algo.advantage.is_correction_threshold"]) != 2:
        return "--algo.advantage.is_correction_threshold takes HIGH or LOW HIGH"
    return None


def refuse_truncated_sampling(v: Values) -> str | None:
    """Recorded log-probs are those of the truncated distribution."""
    reads = v["algo.advantage.is_correction_level"] != "off" or (
        v["algo.kl.init_coef"] > 0 and v["algo.kl.ref"] == "rollout"
    )
    if reads and v["rollout.top_p"] < 1:
        return (
            f"--rollout.top_p {v['rollout.top_p']:g} biases the log-probs that the correction reads; use 1.0"
        )
    return None


def refuse_greedy(v: Values) -> str | None:
    """Molt accepts temperature 0 and divides by it."""
    if v["rollout.temperature"] <= 0:
        return f"--rollout.temperature {v['rollout.temperature']:g} divides the logits by zero; use 1.0"
    return None


def refuse_uncorrected(v: Values) -> str | None:
    """Stale data need the correction."""
    if v["algo.advantage.is_correction_level"] != "off" or v["algo.advantage.score_centering_top_k"]:
        return None
    if v["train.async_queue_size"] > 1 or v["train.partial_rollout_enable"]:
        return (
            "--algo.advantage.is_correction_level off needs --train.async_queue_size 1 and no partial rollout"
        )
    return None


def refuse_queue(v: Values) -> str | None:
    """Molt checks this only once the actors run."""
    if v["train.async_queue_size"] <= 0:
        return f"--train.async_queue_size {v['train.async_queue_size']} must be 1 or more"
    return None


def refuse_replay(v: Values) -> str | None:
    """Routing replay against preemption and speculative decoding."""
    if v["train.routing_replay"] and v["train.partial_rollout_enable"]:
        return (
            "--train.routing_replay loses the routing of preempted trajectories; no partial rollout with it"
        )
    if v["vllm.mtp_num_speculative_tokens"] > 0:
        for name in ("train.routing_replay", "vllm.enable_prefix_caching"):
            if v[name]:
                return f"--vllm.mtp_num_speculative_tokens corrupts log-probs together with --{name}"
    return None


def refuse_packing(v: Values) -> str | None:
    """Packed rows need an attention that knows them; native classes with flash_attention_2 fail late."""
    if v["fsdp.packing_samples"]:
        attention = v["fsdp.attn_implementation"]
        if attention not in _PACKED_ATTENTION:
            return f"--fsdp.packing_samples with --fsdp.attn_implementation {attention}; use te"
        if attention == "flash_attention_2":
            return "--fsdp.packing_samples with flash_attention_2 fails late on Molt's native model classes; use te"
        if v["actor.loss_mode"] == LOSS_MODE:
            return "--fsdp.packing_samples is not proven with our loss"
    elif v["train.dynamic_batch_enable"]:
        return (
            "--train.dynamic_batch_enable needs --fsdp.packing_samples, which is refused here; leave it off"
        )
    return None


def refuse_epochs(v: Values) -> str | None:
    """One pass over each batch."""
    if v["train.force_on_policy"] and v["train.max_epochs"] != 1:
        return f"--train.max_epochs {v['train.max_epochs']} contradicts --train.force_on_policy; use 1"
    return None


def refuse_gate(v: Values) -> str | None:
    """Combinations that Molt's loss refuses only after the models are loaded."""
    level, mode = v["algo.advantage.is_correction_level"], v["algo.advantage.is_correction_mode"]
    gating, threshold = v["algo.advantage.is_correction_gating"], v["algo.advantage.is_correction_threshold"]
    if mode != "mask" and level not in ("off", "token"):
        return f"--algo.advantage.is_correction_mode {mode} needs level token, not {level}; use mask"
    if gating != "ratio":
        if mode != "mask" or level == "geo":
            return f"--algo.advantage.is_correction_gating {gating} needs mode mask and level token or seq"
        if threshold[0] > 0:
            return (
                f"--algo.advantage.is_correction_gating {gating} with the band {threshold[0]:g} {threshold[1]:g} "
                "rejects everything; give one bound, delta"
            )
    return None


def refuse_clip(v: Values) -> str | None:
    """Clip settings of other surrogates."""
    dual, high = v["actor.dual_clip"], v["actor.eps_clip_low_high"][1]
    if dual is not None and (dual <= 1 or v["actor.loss_mode"] != "ppo"):
        return f"--actor.dual_clip {dual:g} needs a value above 1 and --actor.loss_mode ppo"
    if v["actor.loss_mode"] == "cispo" and high < 1:
        return f"--actor.loss_mode cispo reads --actor.eps_clip_low_high {high:g} as a ceiling; it must be 1 or more"
    return None


def refuse_centering(v: Values) -> str | None:
    """Score centering replaces the gate and cannot stand beside it."""
    if not v["algo.advantage.score_centering_top_k"]:
        return None
    if v["train.max_epochs"] != 1 or v["rollout.top_p"] != 1 or v["fsdp.tp_size"] > 1:
        return "--algo.advantage.score_centering_top_k needs one epoch, top-p 1 and no tensor parallelism"
    if (
        v["algo.advantage.is_correction_level"] not in ("off", "token")
        or v["algo.advantage.is_correction_gating"] != "ratio"
    ):
        return "--algo.advantage.score_centering_top_k cannot stand beside a trajectory gate; leave it 0"
    return None


def refuse_group(v: Values) -> str | None:
    """Group estimators need a group, and so does dynamic filtering."""
    several = v["rollout.n_samples_per_prompt"] > 1
    if v["algo.advantage.estimator"] in _GROUP_ESTIMATORS and not several:
        return f"--algo.advantage.estimator {v['algo.advantage.estimator']} needs more than one sample per prompt"
    if v["algo.dynamic_filtering_enable"]:
        low, high = v["algo.dynamic_filtering_range"]
        if not several or low >= high:
            return "--algo.dynamic_filtering_enable needs several samples per prompt and a range LOW < HIGH"
        if v["actor.loss_mode"] == LOSS_MODE:
            return (
                "--algo.dynamic_filtering_enable drops trajectories before their batch mean (Eq. 5) is taken"
            )
    return None


def refuse_kl(v: Values) -> str | None:
    """KL terms that have the wrong sign or no reference."""
    if v["algo.kl.ref"] != "rollout":
        return None
    if v["algo.kl.use_loss"] and v["algo.kl.estimator"] == "k1":
        return "--algo.kl.estimator k1 as a loss has the wrong sign against the rollout policy; use k3"
    if v["algo.kl.init_coef"] > 0:
        return (
            "--algo.kl.init_coef above 0 with --algo.kl.ref rollout passes the checks and fails at run time"
        )
    return None


def refuse_rewards(v: Values) -> str | None:
    """Length penalties are no part of the method, and two at once are a mistake."""
    buffer, coefficient = v["reward.overlong_buffer_len"], v["reward.stop_properly_penalty_coef"]
    factor = v["reward.overlong_penalty_factor"]
    if not math.isfinite(factor) or factor < 0:
        return "--reward.overlong_penalty_factor must be finite and not negative"
    if buffer is not None and not 0 < buffer <= v["data.max_len"]:
        return "--reward.overlong_buffer_len must be above 0 and at most --data.max_len"
    if coefficient is not None and not (math.isfinite(coefficient) and coefficient <= 1):
        return "--reward.stop_properly_penalty_coef must be at most 1"
    if buffer is not None and coefficient is not None:
        return "--reward.overlong_buffer_len and --reward.stop_properly_penalty_coef punish length twice"
    return None


def refuse_sizes(v: Values) -> str | None:
    """Batch, microbatch and GPUs; Molt meets the second of these after loading the model."""
    gpus, size = v["actor.num_nodes"] * v["actor.num_gpus_per_node"], v["fsdp.tp_size"] * v["fsdp.cp_size"]
    replicas = gpus // size
    if v["fsdp.pp_size"] > 1:
        return "--fsdp.pp_size above 1: Molt's trainers are not pipeline-parallel"
    batches = v["rollout.n_samples_per_prompt"] * v["rollout.batch_size"] // v["rollout.micro_batch_size"]
    if batches < replicas:
        return f"{batches} rollout batches do not reach {replicas} data-parallel replicas; raise --rollout.batch_size"
    step = v["train.micro_batch_size"] * max(1, replicas)
    if not v["train.dynamic_batch_enable"] and (v["train.batch_size"] < step or v["train.batch_size"] % step):
        return (
            f"--train.batch_size {v['train.batch_size']} is no multiple of {step} = --train.micro_batch_size "
            f"{v['train.micro_batch_size']} x {replicas} data-parallel replicas"
        )
    if v["eval.batch_size"] is not None and v["eval.batch_size"] <= 0:
        return f"--eval.batch_size {v['eval.batch_size']} must be above 0"
    return None


def refuse_offload(v: Values) -> str | None:
    """Full offload needs several ranks, and no optimizer but AdamW steps on the CPU."""
    if v["fsdp.offload"] == "full" and v["actor.num_nodes"] * v["actor.num_gpus_per_node"] == 1:
        return "--fsdp.offload full needs more than one GPU for the learner; use optimizer"
    if v["fsdp.offload"] == "optimizer" and v["actor.optim"] != "adam":
        return "--fsdp.offload optimizer knows AdamW only"
    return None


def refuse_debugging(v: Values) -> str | None:
    """Flags that make a run train on nothing new, or not at all."""
    if v["train.rollout_replay_dir"]:
        return "--train.rollout_replay_dir trains on saved batches again; the method discards each after one update"
    if v["eval.eval_only"]:
        return "--eval.eval_only trains nothing"
    return None


RULES: tuple[Callable[[Values], str | None], ...] = (
    refuse_missing,
    refuse_distillation,
    refuse_threshold,
    refuse_truncated_sampling,
    refuse_greedy,
    refuse_uncorrected,
    refuse_queue,
    refuse_replay,
    refuse_packing,
    refuse_epochs,
    refuse_gate,
    refuse_clip,
    refuse_centering,
    refuse_group,
    refuse_kl,
    refuse_rewards,
    refuse_sizes,
    refuse_offload,
    refuse_debugging,
)


def refusals(values: Values) -> list[str]:
    """Every rule's message; a band with the wrong count hides the rules that read it."""
    if broken := refuse_threshold(values):
        return [broken]
    return [message for rule in RULES if (message := rule(values)) is not None]


def check_flags(experiment: Experiment, flags: Sequence[Flag], told: Sequence[Check]) -> list[Check]:
    """The checks on Molt's level: names, types and choices against its interface, then its rules.

    A rule stays silent about flags whose settings an error among `told` already names.
    """
    mapped = {row.flag: row for row in rows_for(experiment.config)}
    checks = [*check_secrets(experiment, tuple(flags)), *check_extra_flags(experiment, mapped)]
    known = {flag.name: flag.value for flag in flags if flag.name in molt_options()}
    for name, value in known.items():
        option = molt_options()[name]
        if wrong := mistake(option, value) or (None if name in mapped else too_small(option, value)):
            checks.append(
                Check("molt-flag", "error", f"--{name} {_word(value)} {wrong}", _settings(name, mapped))
            )
    if any(check.level == "error" for check in checks):
        return checks
    accused = {name for check in told if check.level == "error" for name in check.settings}
    values, silent = predict(known)
    for message in refusals(values):
        settings = tuple(name for flag in _FLAG.findall(message) for name in _settings(flag, mapped))
        if not accused & set(settings):
            checks.append(Check("molt-rule", "error", message, settings))
    for name, value, why in silent:
        settings = _settings(name, mapped)
        if not accused & set(settings):
            fix = (
                f"write molt.flags.{name}={_word(value)}"
                if settings == ("molt.flags",)
                else f"set {settings[0]}"
            )
            changed = f"Molt would silently set {name}={_word(value)}, because {why}; {fix}"
            checks.append(Check("molt-silent", "error", changed, settings))
    if checks or accused:
        return checks
    fits = (
        f"{len(known)} flags fit the interface of Molt {MOLT_VERSION}, and it changes none of them silently"
    )
    return [Check("molt-flags", "ok", fits)]


def _settings(name: str, mapped: Mapping[str, FlagRow]) -> tuple[str, ...]:
    return (mapped[name].settings if name in mapped else ()) or ("molt.flags",)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
