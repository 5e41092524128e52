"""Checks that look at several settings together.

A `validate_*` rejects or comments and never changes anything; an `auto_*` derives a value and gives its reason, and
the loader applies it only where nobody wrote a value. All of them are pure functions of the experiment.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from flashreinforce_molt.config.catalogue import nearest
from flashreinforce_molt.config.experiment import Check, Experiment
from flashreinforce_molt.config.locks import COMMIT, short_revision
from flashreinforce_molt.config.report import Derived, Report
from flashreinforce_molt.config.validate_batch import (
    auto_molt_microbatch,
    auto_molt_updates,
    validate_algorithm,
    validate_data,
    validate_epochs,
    validate_evaluation,
    validate_pins,
    validate_rollouts_per_prompt,
)
from flashreinforce_molt.config.validate_cluster import (
    validate_alfworld,
    validate_cluster,
    validate_context,
    validate_model_parallel,
    validate_parallel,
)
from flashreinforce_molt.config.validate_molt import (
    auto_model_path,
    auto_prefix_caching,
    validate_engine,
    validate_molt_queue,
    validate_native,
    validate_partial_rollout,
    validate_routing_replay,
)


def auto_sync_lag(experiment: Experiment) -> Derived:
    """A synchronous run samples with the current weights, so its lag bound is 0; Molt takes no bound."""
    if experiment.config.engine.mode == "sync" and experiment.engine != "molt":
        return {
            "rollout.max_policy_lag": (
                0,
                "engine.mode=sync samples each batch with the weights that it updates",
            )
        }
    return {}


def validate_full_support(experiment: Experiment) -> list[Check]:
    """The importance ratio needs a behaviour policy that can sample every token (Eq. 1)."""
    full = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    allowed = "rollout.allow_truncated_sampling"
    report = Report("full-support", experiment, *(f"rollout.{key}" for key in full), allowed)
    for key, neutral in full.items():
        if getattr(experiment.config.rollout, key) == neutral:
            continue
        effect = "reweighs sampled tokens" if key == "repetition_penalty" else "truncates sampling support"
        what = f"{report.say(f'rollout.{key}')} {effect}, so the importance ratio is wrong"
        if experiment.config.rollout.allow_truncated_sampling:
            report.add("warning", f"{what}; accepted by {report.say(allowed)}")
        else:
            way_out = "" if experiment.engine == "molt" else f" or set {allowed}=true"
            report.add("error", f"{what}; use {neutral}{way_out}")
    return report.checks("training samples have full support")


def validate_temperature(experiment: Experiment) -> list[Check]:
    """Any temperature is consistent here; the published runs sample at 1."""
    report = Report("temperature", experiment, "rollout.temperature")
    if experiment.config.rollout.temperature != 1:
        report.add(
            "warning",
            f"{report.say('rollout.temperature')}: the policy that is trained is the one at this temperature; "
            "published runs train at 1",
        )
    return report.checks("training samples at temperature 1")


def validate_lengths(experiment: Experiment) -> list[Check]:
    """Turns fit into the trajectory, the trajectory into the context, the context into the model."""
    turn, new, context = (
        f"rollout.{key}" for key in ("max_turn_tokens", "max_new_tokens", "max_context_tokens")
    )
    report = Report("lengths", experiment, turn, new, context, "model.config", "environment.max_turns")
    rollout = experiment.config.rollout
    if rollout.max_new_tokens >= rollout.max_context_tokens:
        report.add(
            "error",
            f"{report.say(new)} leaves no room for the prompt in {report.say(context)}; raise the context",
        )
    if rollout.max_turn_tokens is not None and rollout.max_turn_tokens > rollout.max_new_tokens:
        report.add("error", f"{report.say(turn)} exceeds {report.say(new)}; a turn is part of a trajectory")
    positions = experiment.config.model.config.get("max_position_embeddings")
    if isinstance(positions, int) and rollout.max_context_tokens > positions:
        report.add(
            "error",
            f"{report.say(context)} exceeds the {positions} positions of model.config; lower it or raise "
            "model.config.max_position_embeddings",
        )
    return report.checks(
        f"{rollout.max_new_tokens:,} new tokens fit into a context of {rollout.max_context_tokens:,}"
    )


def validate_aggregation(experiment: Experiment) -> list[Check]:
    """Constant-length aggregation needs its divisor, and only it."""
    how, length = "objective.aggregation", "objective.constant_length"
    report = Report("aggregation", experiment, how, length)
    objective = experiment.config.objective
    if objective.aggregation == "constant-length" and objective.constant_length is None:
        report.add(
            "error",
            f"{report.say(how)} needs its divisor; set {length}, for example to rollout.max_new_tokens",
        )
    if objective.aggregation != "constant-length" and objective.constant_length is not None:
        report.add("warning", f"{report.say(length)} has no effect with {report.say(how)}")
    if objective.aggregation != "sample-mean":
        report.add(
            "warning",
            f"{report.say(how)} is an ablation; the method gives every trajectory the same weight (Eq. 9)",
        )
    return report.checks("every trajectory has the same weight (Eq. 9)")


def validate_correction(experiment: Experiment) -> list[Check]:
    """The ratio, its gradient form and the gate belong together."""
    correction, gate, form = (
        f"objective.{key}" for key in ("importance_correction", "gate", "ratio_gradient")
    )
    report = Report("correction", experiment, correction, gate, form, "objective.delta")
    objective = experiment.config.objective
    if experiment.config.algorithm.name == "grpo":
        if objective.importance_correction:
            report.add(
                "warning", f"{report.say(correction)} beside GRPO's own ratio is no published baseline"
            )
        return report.checks(f"GRPO clips its own ratio at {experiment.config.algorithm.clip:g}")
    gated = objective.importance_correction and objective.gate != "none"
    if experiment.settings["objective.delta"].layer == "--set" and not gated:
        report.add("warning", f"{report.say('objective.delta')} has no effect: the gate is off")
    if not objective.importance_correction:
        if objective.ratio_gradient == "through":
            report.add(
                "error",
                f"{report.say(form)} differentiates a ratio that {report.say(correction)} removes; use detached",
            )
        report.add(
            "warning",
            f"{report.say(correction)} replaces every ratio by 1 and switches the gate off (ablation)",
        )
        if objective.gate != "none":
            report.add("warning", f"{report.say(gate)} has no effect with {report.say(correction)}")
    elif objective.gate == "token":
        report.add(
            "warning", f"{report.say(gate)} is an ablation; the method decides once for a trajectory (Eq. 8)"
        )
    elif objective.gate == "none":
        report.add("warning", f"{report.say(gate)}: no trajectory is rejected, whatever its drift (ablation)")
    elif objective.delta == 0:
        report.add("warning", f"{report.say('objective.delta')} admits only trajectories without any drift")
    return report.checks("importance ratio on, one gate decision for a trajectory (Eq. 1, 8)")


def validate_token_filter(experiment: Experiment) -> list[Check]:
    """The failure-token filter of Appendix C."""
    name = "objective.negative_token_fraction"
    report = Report("token-filter", experiment, name)
    fraction = experiment.config.objective.negative_token_fraction
    if experiment.config.algorithm.name == "grpo":
        return []
    if fraction == 0:
        report.add(
            "warning",
            f"{report.say(name)} removes every token of failed trajectories: only successes train (ablation)",
        )
    elif fraction < 1:
        share = f"{100 * fraction:g}%"
        return report.checks(
            f"failed trajectories keep their {share} highest-entropy tokens; each update computes entropies"
        )
    return report.checks("failed trajectories keep all tokens")


def validate_batch(experiment: Experiment) -> list[Check]:
    """A microbatch is part of a batch."""
    micro, batch = "train.micro_batch_size", "train.batch_size"
    report = Report("batch", experiment, micro, batch)
    train = experiment.config.train
    if train.micro_batch_size is not None and train.micro_batch_size > train.batch_size:
        report.add(
            "error",
            f"{report.say(micro)} exceeds {report.say(batch)}; lower it, or leave it empty for the whole batch",
        )
    return report.checks(f"one optimizer step on {train.batch_size} fresh trajectories")


ENVIRONMENTS = ("alfworld", "math", "python_tool", "reasoning_gym", "tool_demo")
"""Environments of this package, as `environment.name` calls them; a test holds them against the registry."""


def validate_environment(experiment: Experiment) -> list[Check]:
    """A name of ours, or a class of the user's by its path."""
    name = "environment.name"
    report = Report("environment", experiment, name)
    chosen = experiment.config.environment.name
    if ":" not in chosen and chosen not in ENVIRONMENTS:
        near = ", ".join(nearest(chosen, ENVIRONMENTS))
        report.add(
            "error", f"{report.say(name)} is unknown; nearest: {near}; your own is package.module:Class"
        )
    return report.checks(f"{chosen}, up to {experiment.config.environment.max_turns} turns")


def validate_model(experiment: Experiment) -> list[Check]:
    """One model, pinned; code from its repository only in so many words."""
    id, config, revision, code = (f"model.{key}" for key in ("id", "config", "revision", "trust_remote_code"))
    report = Report("model", experiment, id, config, revision, code, "model.alphabet")
    model = experiment.config.model
    if model.id is None and not model.config:
        report.add(
            "error",
            f"no model: set {id} (a Hugging Face id or a directory) or {config} (a small one built here)",
        )
    if model.id is not None and model.config:
        report.add(
            "error",
            f"{report.say(id)} and {report.say(config)} name two models; set {id}=null or {config}={{}}",
        )
    if model.id is not None and (model.id != model.id.strip() or not model.id.strip() or "\n" in model.id):
        report.add("error", f"{report.say(id)} is neither a Hugging Face id nor a directory")
    if model.config and not isinstance(model.config.get("model_type"), str):
        report.add(
            "error", f"{config} ({experiment.settings[config].layer}) needs a model_type, such as qwen2"
        )
    if model.config and len(set(model.alphabet)) != len(model.alphabet):
        twice = next(character for character in model.alphabet if model.alphabet.count(character) > 1)
        report.add(
            "error", f"model.alphabet ({experiment.settings['model.alphabet'].layer}) holds {twice!r} twice"
        )
    if model.config and not model.alphabet:
        report.add(
            "error",
            f"{report.say('model.alphabet')} is empty; the tokenizer of {config} needs its characters",
        )
    if model.id is not None and not os.path.isdir(model.id):
        if model.revision is None:
            report.add(
                "warning", f"{report.say(id)} is UNPINNED; set {revision} to a commit of that repository"
            )
        elif not COMMIT.fullmatch(model.revision):
            report.add(
                "warning", f"{report.say(revision)} may move; a full commit of 40 hexadecimal digits does not"
            )
    elif model.revision is not None:
        report.add("warning", f"{report.say(revision)} has no effect on a model that is not downloaded")
    if model.trust_remote_code:
        report.add("warning", f"{report.say(code)} runs Python code of the model repository on this machine")
    where = f"revision {short_revision(model.revision)}" if model.revision else "a local model"
    return report.checks(f"{model.id or 'built from model.config'}, {where}")


def validate_precision(experiment: Experiment) -> list[Check]:
    """flash_attention_2 exists on GPUs in half precision only."""
    attention, device, dtype = "model.attention", "engine.device", "model.dtype"
    report = Report("precision", experiment, attention, device, dtype)
    config = experiment.config
    if config.model.attention == "flash_attention_2":
        if config.engine.device != "cuda":
            report.add("error", f"{report.say(attention)} needs a GPU, but {report.say(device)}; use sdpa")
        if config.model.dtype != "bfloat16":
            report.add("error", f"{report.say(attention)} needs {dtype}=bfloat16, but {report.say(dtype)}")
    return report.checks(
        f"{config.model.dtype} with {config.model.attention} attention on {config.engine.device}"
    )


def validate_in_flight(experiment: Experiment) -> list[Check]:
    """Every worker has the same number of slots."""
    slots, workers = "rollout.in_flight", "engine.workers"
    report = Report("in-flight", experiment, slots, workers)
    count, among = experiment.config.rollout.in_flight, experiment.config.engine.workers
    if experiment.engine == "molt":
        return report.checks(f"{count} trajectories in flight")
    if count < among:
        report.add(
            "error",
            f"{report.say(slots)} leaves some of {report.say(workers)} without a trajectory; use {among} or more",
        )
    elif count % among:
        lower = count - count % among
        report.add(
            "error",
            f"{report.say(slots)} does not divide over {report.say(workers)}; use {lower} or {lower + among}",
        )
    per_worker = "" if among == 1 else f", {count // among} on each of {among} workers"
    return report.checks(f"{count} trajectories in flight{per_worker}")


def validate_lag(experiment: Experiment) -> list[Check]:
    """The lag bound against the mode and the number of trajectories under way."""
    bound, mode, slots, batch = (
        "rollout.max_policy_lag",
        "engine.mode",
        "rollout.in_flight",
        "train.batch_size",
    )
    report = Report("policy-lag", experiment, bound, mode, slots, batch)
    config = experiment.config
    lag = config.rollout.max_policy_lag
    if config.engine.mode == "sync":
        if lag:
            report.add("warning", f"{report.say(bound)} is never reached: {report.say(mode)} trains at lag 0")
        if config.rollout.in_flight > config.train.batch_size:
            report.add(
                "warning",
                f"{report.say(slots)}: with {report.say(mode)} at most {report.say(batch)} are under way",
            )
    elif lag == 0:
        report.add(
            "warning",
            f"{report.say(bound)} makes the workers wait for every update, as engine.mode=sync does",
        )
    elif lag is not None and config.rollout.in_flight > (lag + 1) * config.train.batch_size:
        usable = (lag + 1) * config.train.batch_size
        report.add(
            "warning",
            f"{report.say(slots)}: {report.say(bound)} keeps at most {usable} trajectories under way",
        )
    return report.checks(
        "policy lag is measured" + (f" and bounded by {lag}" if lag is not None else ", without a bound")
    )


def validate_deterministic(experiment: Experiment) -> list[Check]:
    """Arrival order of several workers cannot be repeated."""
    name, workers = "engine.deterministic", "engine.workers"
    report = Report("deterministic", experiment, name, workers, "engine.mode")
    if not experiment.config.engine.deterministic:
        return []
    if experiment.config.engine.workers != 1:
        report.add(
            "error", f"{report.say(name)} needs one worker, but {report.say(workers)}; set {workers}=1"
        )
    return report.checks("bit-identical for a seed: learner and worker take turns, which costs their overlap")


def validate_warm_start(experiment: Experiment) -> list[Check]:
    """Supervised steps are for models that were initialised here."""
    name = "warm_start.steps"
    report = Report("warm-start", experiment, name, "model.id")
    steps = experiment.config.warm_start.steps
    if not steps:
        return []
    if experiment.config.model.id is not None:
        report.add(
            "warning",
            f"{report.say(name)} trains {report.say('model.id')} on demonstrations before the method starts",
        )
    return report.checks(
        f"{steps} supervised steps come before the first update; they are no part of the method"
    )


VALIDATORS: tuple[Callable[[Experiment], list[Check]], ...] = (
    validate_model,
    validate_environment,
    validate_precision,
    validate_full_support,
    validate_temperature,
    validate_lengths,
    validate_context,
    validate_batch,
    validate_rollouts_per_prompt,
    validate_epochs,
    validate_algorithm,
    validate_aggregation,
    validate_correction,
    validate_token_filter,
    validate_in_flight,
    validate_lag,
    validate_deterministic,
    validate_warm_start,
    validate_data,
    validate_pins,
    validate_evaluation,
    validate_alfworld,
    validate_engine,
    validate_native,
    validate_molt_queue,
    validate_partial_rollout,
    validate_routing_replay,
    validate_cluster,
    validate_parallel,
    validate_model_parallel,
)

DERIVATIONS: tuple[Callable[[Experiment], Derived], ...] = (
    auto_sync_lag,
    auto_molt_microbatch,
    auto_molt_updates,
    auto_model_path,
    auto_prefix_caching,
)


def run_checks(experiment: Experiment) -> list[Check]:
    """What every validator says, in the order of the registry."""
    return [check for validate in VALIDATORS for check in validate(experiment)]
