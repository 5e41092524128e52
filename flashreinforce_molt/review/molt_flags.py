"""From our settings to the flags of Molt: one row for each flag, and nothing else decides a flag.

A row names the flag, the settings that it comes from and how; a row without settings is a constant with its reason.
A value of None leaves the flag out, so that Molt's default holds.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashreinforce_molt.config.experiment import Experiment, Setting
from flashreinforce_molt.config.schema import Config
from flashreinforce_molt.config.typed import show
from flashreinforce_molt.config.validate_batch import prompts_per_update
from flashreinforce_molt.molt.interface import molt_options
from flashreinforce_molt.molt.options import ESTIMATOR, LOSS_MODE

_AGENT = Path(__file__).resolve().parents[1] / "molt" / "agent.py"


@dataclass(frozen=True)
class FlagRow:
    """How one flag of Molt follows from our settings."""

    flag: str
    settings: tuple[str, ...]
    value: Callable[[Config, str], Any]
    """From the configuration and the run directory."""
    note: str = ""


@dataclass(frozen=True)
class Flag:
    """A flag of the launch, with where its value came from; `setting` is the one that decided it."""

    group: str
    name: str
    value: Any
    source: str
    layer: str
    setting: Setting | None = None


def _row(flag: str, settings: str, value: Callable[[Config, str], Any], note: str = "") -> FlagRow:
    return FlagRow(flag, tuple(settings.split()), value, note)


def _same(flag: str, setting: str, note: str = "") -> FlagRow:
    """The value of a setting as it is."""
    group, _, key = setting.rpartition(".")
    return _row(
        flag,
        setting,
        lambda config, _: getattr(getattr(config, group) if group else config, key),
        note,
    )


def agent_path(config: Config) -> str:
    """The agent's file: the given one, or ours, relative where it lies below the current folder."""
    if config.molt.agent is not None:
        return config.molt.agent
    relative = os.path.relpath(_AGENT)
    return str(_AGENT) if relative.startswith("..") else relative


def _loss_mode(config: Config) -> str:
    return LOSS_MODE if config.molt.native else "ppo"


def _estimator(config: Config) -> str:
    if config.algorithm.name == "grpo":
        return "grpo"
    return ESTIMATOR if config.molt.native else "flash_reinforce"


def _correction_level(config: Config) -> str:
    """Our loss decides by `--flash.*`; Molt records behaviour log-probs only while its correction is on."""
    if config.objective.importance_correction and config.objective.gate == "token":
        return "token"
    return "seq" if config.objective.importance_correction or config.molt.native else "off"


def _threshold(config: Config) -> list[float] | None:
    if _correction_level(config) == "off":
        return None
    gated = config.objective.gate != "none" and config.objective.importance_correction
    return [config.objective.delta if gated else math.inf]


def _schedule(config: Config) -> str:
    if config.optim.schedule == "cosine":
        return "cosine_with_min_lr"
    return "constant_with_warmup" if config.optim.warmup_fraction > 0 else "constant"


def _evaluation_files(config: Config) -> str | None:
    paths = [suite["path"] for suite in config.evaluation.suites.values() if _has_path(suite)]
    return ",".join(paths) or None


def _has_path(suite: Any) -> bool:
    return isinstance(suite, dict) and isinstance(suite.get("path"), str)


def _evaluated(value: Callable[[Config], Any]) -> Callable[[Config, str], Any]:
    return lambda config, _: value(config) if _evaluation_files(config) else None


_AGGREGATION = {
    "sample-mean": "seq-mean-token-mean",
    "token-mean": "token-mean",
    "constant-length": "seq-mean-token-mean",
}

MOLT_GROUPS: Mapping[str, tuple[FlagRow, ...]] = {
    "model": (
        _same("actor.model_name_or_path", "molt.model_path"),
        _row("fsdp.param_dtype", "model.dtype", lambda c, _: {"bfloat16": "bf16"}.get(c.model.dtype)),
        _same("fsdp.attn_implementation", "model.attention"),
        _row(
            "actor.gradient_checkpoint",
            "model.gradient_checkpointing",
            lambda c, _: "full" if c.model.gradient_checkpointing else "none",
        ),
    ),
    "data": (
        _same("data.prompt_dataset", "data.path"),
        _same("data.input_key", "data.prompt_key"),
        _same("data.label_key", "data.label_key"),
        _same("data.tools_key", "data.tools_key"),
        _row("data.apply_chat_template", "", lambda c, _: True, "ours: prepared prompts are chat messages"),
        _same("data.max_samples", "data.max_rows"),
        _same("data.max_len", "rollout.max_context_tokens"),
    ),
    "sampling": (
        _row("train.agent_path", "molt.agent", lambda c, _: agent_path(c), "ours for environment.name"),
        _row(
            "rollout.batch_size",
            "train.batch_size train.rollouts_per_prompt",
            lambda c, _: prompts_per_update(c),
        ),
        _same("rollout.n_samples_per_prompt", "train.rollouts_per_prompt"),
        _row(
            "rollout.vllm_generate_batch_size",
            "rollout.in_flight train.rollouts_per_prompt",
            lambda c, _: max(1, c.rollout.in_flight // c.train.rollouts_per_prompt),
        ),
        _row(
            "rollout.max_new_tokens",
            "rollout.max_turn_tokens rollout.max_new_tokens",
            lambda c, _: c.rollout.max_turn_tokens or c.rollout.max_new_tokens,
            "Molt's limit is that of one turn",
        ),
        _same("rollout.temperature", "rollout.temperature"),
        _same("rollout.top_p", "rollout.top_p"),
        _same("rollout.num_runners", "molt.runners"),
        _same("train.async_queue_size", "rollout.queue_depth"),
        _same("train.partial_rollout_enable", "molt.partial_rollout"),
        _row("train.force_sync_mode", "engine.mode", lambda c, _: c.engine.mode == "sync"),
        _same("train.routing_replay", "molt.routing_replay"),
    ),
    "objective": (
        _row("actor.loss_mode", "molt.native", lambda c, _: _loss_mode(c), "our registered loss, or Molt's"),
        _row("algo.advantage.estimator", "algorithm.name molt.native", lambda c, _: _estimator(c)),
        _row(
            "actor.loss_agg_mode", "objective.aggregation", lambda c, _: _AGGREGATION[c.objective.aggregation]
        ),
        _row(
            "algo.advantage.is_correction_level",
            "objective.gate objective.importance_correction molt.native",
            lambda c, _: _correction_level(c),
        ),
        _row(
            "algo.advantage.is_correction_gating",
            "objective.importance_correction molt.native",
            lambda c, _: None if _correction_level(c) == "off" else "binary_kl",
            "paper, Eq. 6: mean Bernoulli KL",
        ),
        _row(
            "algo.advantage.is_correction_mode", "", lambda c, _: "mask", "paper, Eq. 8: reject, never clip"
        ),
        _row(
            "algo.advantage.is_correction_threshold",
            "objective.delta objective.gate objective.importance_correction",
            lambda c, _: _threshold(c),
        ),
        _row(
            "actor.eps_clip_low_high",
            "algorithm.clip",
            lambda c, _: [c.algorithm.clip, c.algorithm.clip],
            "without effect on the method, whose only step has ratio 1",
        ),
        _row(
            "actor.entropy_coef",
            "algorithm.entropy_coefficient",
            lambda c, _: c.algorithm.entropy_coefficient or None,
        ),
        _same("algo.kl.init_coef", "algorithm.kl_coefficient"),
        _row(
            "algo.kl.ref",
            "algorithm.kl_reference",
            lambda c, _: "model" if c.algorithm.kl_reference == "model" else "rollout",
        ),
    ),
    "optimizer": (
        _row("actor.optim", "", lambda c, _: "adam", "published shared setting: AdamW"),
        _same("actor.adam.lr", "optim.lr"),
        _row("actor.adam.betas", "optim.beta1 optim.beta2", lambda c, _: [c.optim.beta1, c.optim.beta2]),
        _same("actor.adam.eps", "optim.eps"),
        _same("actor.adam.weight_decay", "optim.weight_decay"),
        _same("actor.max_norm", "optim.max_grad_norm"),
        _row("actor.lr_scheduler", "optim.schedule optim.warmup_fraction", lambda c, _: _schedule(c)),
        _same("actor.lr_warmup_ratio", "optim.warmup_fraction"),
        _same("actor.min_lr_ratio", "optim.min_lr_fraction"),
    ),
    "updates": (
        _same("train.batch_size", "train.batch_size"),
        _same("train.micro_batch_size", "train.micro_batch_size"),
        _same("train.num_episodes", "data.passes"),
        _same("train.max_epochs", "train.epochs_per_batch"),
        _row(
            "train.force_on_policy",
            "",
            lambda c, _: True,
            "paper: one optimizer step on the whole fresh batch",
        ),
        _same("train.seed", "seed"),
        _same("train.full_determinism_enable", "engine.deterministic"),
    ),
    "evaluation": (
        _row("eval.dataset", "evaluation.suites", lambda c, _: _evaluation_files(c)),
        _row("eval.steps", "evaluation.every", _evaluated(lambda c: c.evaluation.every or -1)),
        _row("eval.eval_at_start", "evaluation.at_start", _evaluated(lambda c: c.evaluation.at_start)),
        _row("eval.n_samples_per_prompt", "evaluation.samples", _evaluated(lambda c: c.evaluation.samples)),
        _row("eval.temperature", "evaluation.temperature", _evaluated(lambda c: c.evaluation.temperature)),
        _row("eval.top_p", "evaluation.top_p", _evaluated(lambda c: c.evaluation.top_p)),
        _row(
            "eval.max_new_tokens",
            "evaluation.max_new_tokens",
            _evaluated(lambda c: c.evaluation.max_new_tokens),
        ),
    ),
    "machines": (
        _same("actor.num_nodes", "cluster.actor_nodes"),
        _same("actor.num_gpus_per_node", "cluster.actor_gpus_per_node"),
        _row(
            "ref.num_nodes",
            "cluster.actor_nodes algorithm.kl_reference",
            lambda c, _: c.cluster.actor_nodes if c.algorithm.kl_reference == "model" else None,
        ),
        _row(
            "ref.num_gpus_per_node",
            "cluster.actor_gpus_per_node algorithm.kl_reference",
            lambda c, _: c.cluster.actor_gpus_per_node if c.algorithm.kl_reference == "model" else None,
        ),
        _same("fsdp.tp_size", "cluster.tensor_parallel"),
        _same("fsdp.cp_size", "cluster.context_parallel"),
        _same("fsdp.ep_size", "cluster.expert_parallel"),
        _same("fsdp.offload", "cluster.offload"),
        _same("fsdp.packing_samples", "molt.packing"),
        _same("vllm.num_engines", "cluster.rollout_engines"),
        _same("vllm.tensor_parallel_size", "cluster.rollout_tensor_parallel"),
        _same("vllm.enable_expert_parallel", "cluster.rollout_expert_parallel"),
        _same("vllm.gpu_memory_utilization", "cluster.rollout_memory_share"),
        _same("vllm.enable_prefix_caching", "molt.prefix_caching"),
        _same("train.check_weight_update_equal", "molt.check_weights"),
    ),
    "files": (
        _row("ckpt.path", "", lambda c, run: f"{run}/checkpoints", "run directory (--output)"),
        _row("ckpt.output_dir", "", lambda c, run: f"{run}/model", "run directory (--output)"),
        _row("ckpt.save_steps", "checkpoint.every", lambda c, _: c.checkpoint.every or -1),
        _same("ckpt.max_num", "checkpoint.keep"),
        _same("ckpt.dcp_max_num", "checkpoint.keep"),
        _row(
            "logger.tensorboard_dir",
            "telemetry.tensorboard",
            lambda c, run: run if c.telemetry.tensorboard else None,
        ),
    ),
}

_OBJECTIVE = (
    "delta",
    "gate",
    "aggregation",
    "constant_length",
    "negative_token_fraction",
    "importance_correction",
    "ratio_gradient",
    "log_ratio_limit",
)
NATIVE_ROWS = tuple(_same(f"flash.{key}", f"objective.{key}") for key in _OBJECTIVE)
AGENT_ROWS = (
    _same("flash.environment", "environment.name"),
    _row(
        "flash.environment_options",
        "environment.options",
        lambda c, _: json.dumps(c.environment.options, sort_keys=True) if c.environment.options else None,
    ),
    _same("flash.max_turns", "environment.max_turns"),
    _same("flash.max_new_tokens", "rollout.max_new_tokens"),
    _same("flash.step_timeout_s", "environment.step_timeout_s"),
)


def groups_for(config: Config) -> dict[str, tuple[FlagRow, ...]]:
    """The rows that apply, by group: ours only with our loss, or for our agent."""
    groups = dict(MOLT_GROUPS)
    if config.molt.native:
        groups["objective"] = (*groups["objective"], *NATIVE_ROWS)
    if config.molt.agent is None:
        groups["sampling"] = (*groups["sampling"], *AGENT_ROWS)
    return groups


def rows_for(config: Config) -> tuple[FlagRow, ...]:
    """The rows that apply."""
    return tuple(row for rows in groups_for(config).values() for row in rows)


def molt_flags(experiment: Experiment, run_dir: str, *, resume: bool = False) -> tuple[Flag, ...]:
    """The flags of the launch in the order of the table, then those of `molt.flags`."""
    flags = []
    for group, rows in groups_for(experiment.config).items():
        for row in rows:
            value = row.value(experiment.config, run_dir)
            if value is not None:
                flags.append(_flag(group, row, value, experiment))
    if resume:
        flags.append(Flag("files", "ckpt.load_enable", True, "--resume", "command line"))
    extra = experiment.settings["molt.flags"]
    known = {row.flag for row in rows_for(experiment.config)}
    flags += [
        Flag("other", name, value, extra.source, extra.layer, extra)
        for name, value in flattened(extra.value).items()
        if name not in known
    ]
    return tuple(flags)


def _flag(group: str, row: FlagRow, value: Any, experiment: Experiment) -> Flag:
    decided = [experiment.settings[name] for name in row.settings]
    if not decided or (row.flag == "train.agent_path" and experiment.config.molt.agent is None):
        return Flag(group, row.flag, value, row.note, "table")
    setting = max(decided, key=_weight)
    source = _default_source(row.flag, value) if setting.layer == "default" else setting.source
    return Flag(
        group, row.flag, value, f"{source}; {row.note}" if row.note else source, setting.layer, setting
    )


def _default_source(flag: str, value: Any) -> str:
    """Nobody chose the value; say whether Molt would have taken it too."""
    molts = molt_options()[flag].default
    if flag.startswith("flash.") or value == molts:
        return "our default" if flag.startswith("flash.") else "our default and Molt's"
    return f"our default; Molt's is {show(molts)}"


def _weight(setting: Setting) -> int:
    """Of several settings behind one flag, the latest word counts; the first of equals."""
    layers = ("default", "derived", "base", "recipe")
    if setting.layer in layers:
        return layers.index(setting.layer)
    return len(layers) + (setting.layer == "--set")


def flattened(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"vllm": {"block_size": 128}}` as `{"vllm.block_size": 128}`."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        found.update(flattened(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return found
