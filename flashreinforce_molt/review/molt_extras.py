"""What `molt.flags` may say: flags of Molt that no setting of ours decides, and what each would do to the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashreinforce_molt.config.experiment import Check, Experiment
from flashreinforce_molt.config.recipe_file import unknown
from flashreinforce_molt.config.report import Level
from flashreinforce_molt.config.typed import show
from flashreinforce_molt.molt.interface import MoltOption, molt_options
from flashreinforce_molt.review.molt_flags import Flag, FlagRow, flattened
from flashreinforce_molt.telemetry.redaction import is_secret_name, redact

REFUSED = {
    "vllm.data_parallel_size": "takes GPUs that the plan does not count; raise cluster.rollout_engines instead",
    "vllm.pipeline_parallel_size": "takes GPUs that the plan does not count; raise cluster.rollout_tensor_parallel instead",
    "ckpt.load_enable": "continues a run without comparing its settings; use --resume instead",
}
"""Above Molt's default these would go round the plan or a check."""

CHANGES = {
    "reward.clip_range": "rewards are clipped before their mean is taken (Eq. 5)",
    "reward.": "the reward gets a penalty for length",
    "actor.freezing_steps": "the first updates change nothing",
    "actor.freeze_": "a part of the model is not trained",
    "actor.lora_": "adapters are trained instead of the model",
    "actor.aux_loss_coef": "a loss of the router is added",
    "actor.dual_clip": "the loss gets another clip",
    "critic.": "the method has no critic",
    "algo.advantage.": "the advantages are others than Eq. 5",
    "algo.kl.": "the method has no KL term",
    "algo.dynamic_filtering_": "trajectories are dropped before their batch mean is taken (Eq. 5)",
    "data.prompt_": "other training tasks are drawn than the recipe's",
    "vllm.dtype": "rollouts are sampled in another precision than the learner's, which is drift",
    "vllm.mamba_ssm_cache_dtype": "rollouts are sampled in another precision than the learner's, which is drift",
    "ckpt.warm_resume_rollouts": "a resumed run trains on rollouts of before",
}
"""Flags, or beginnings of flags, that make the run another method; the first that fits speaks."""

HARMLESS = (
    "logger.",
    "local_rank",
    "ckpt.save_hf",
    "ckpt.disable_final_save",
    "ckpt.best_metric_key",
    "ckpt.max_mem",
    "data.dataloader_num_workers",
    "eval.batch_size",
    "train.rollout_dump_dir",
    "rollout.micro_batch_size",
    "vllm.sync_backend",
    "vllm.enforce_eager",
    "vllm.router_",
    "vllm.block_size",
    "vllm.distributed_executor_backend",
    "vllm.disable_custom_all_reduce",
    "vllm.enable_chunked_prefill",
    "vllm.max_num_batched_tokens",
    "vllm.async_scheduling",
)
"""Flags, or beginnings of flags, that only decide how fast or how loudly the same run goes."""


def is_secret(name: str) -> bool:
    """Whether a free-form setting of this name holds a secret; Molt's own is `logger.wandb.key`."""
    return is_secret_name(name) or name.rpartition(".")[2] == "key"


def check_extra_flags(experiment: Experiment, mapped: Mapping[str, FlagRow]) -> list[Check]:
    """Every entry of `molt.flags`: known, ours to give away, and reviewed, or said to be not."""
    origin = f"from {experiment.settings['molt.flags'].layer}"
    checks = []
    for name, value in flattened(experiment.config.molt.flags).items():
        level: Level = "error"
        said = f"molt.flags.{name}={show(value)} ({origin})"
        if name in mapped:
            ours = ", ".join(mapped[name].settings)
            fix = f"decided by {ours}; change that instead" if ours else "fixed here; leave it out"
            message = f"molt.flags.{name} ({origin}) is {fix}"
        elif is_secret(name):
            message = f"molt.flags.{name} ({origin}) would stand in files and process lists; export WANDB_API_KEY instead"
        elif name not in molt_options():
            message = unknown("flag", f"molt.flags.{name}", tuple(molt_options()), origin)
        elif value == molt_options()[name].default or name.startswith(HARMLESS):
            continue
        elif name in REFUSED:
            message = f"{said} {REFUSED[name]}"
        else:
            level = "warning"
            why = next((why for start, why in CHANGES.items() if name.startswith(start)), None)
            message = (
                f"{said} changes the method: {why}"
                if why
                else f"{said} is not reviewed: no rule or plan covers it"
            )
        checks.append(Check("molt-flag", level, message, ("molt.flags",)))
    return checks


def too_small(option: MoltOption, value: Any) -> str | None:
    """A whole number below what its default allows: sizes begin at 1, and a default of 0 or -1 switches something off."""
    least = 1 if option.default is None else min(1, option.default) if option.type is int else None
    if (
        option.type is not int
        or isinstance(value, bool)
        or not isinstance(value, int)
        or value >= (least or 0)
    ):
        return None
    return f"must be at least {least}"


def check_secrets(experiment: Experiment, flags: tuple[Flag, ...]) -> list[Check]:
    """Whatever stands in the command can be read by everybody on the machine."""
    fix = "would stand in the command, where process lists and files show it; leave it out and export an environment variable"
    options = experiment.settings["environment.options"]
    names = [f"environment.options.{name}" for name in flattened(options.value) if is_secret(name)]
    said = [f"{name} (from {options.layer}) {fix} that the environment reads" for name in names]
    for flag in flags:
        if not (names and flag.name == "flash.environment_options") and redact(str(flag.value)) != str(
            flag.value
        ):
            said.append(f"--{flag.name} ({flag.layer}) holds a secret, which {fix}")
    return [Check("secrets", "error", message) for message in said]
