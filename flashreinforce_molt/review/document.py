"""A review: what a resolved experiment would launch, and everything that is known about it beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from flashreinforce_molt.config.experiment import Check, Experiment, Setting
from flashreinforce_molt.config.report import Level
from flashreinforce_molt.config.validate_cluster import actor_gpus, model_shape
from flashreinforce_molt.config.validate_molt import MOLT_GROUPS
from flashreinforce_molt.recipes import Resolution
from flashreinforce_molt.review.commands import Request, Variable, command_of, start_lines, variables_of
from flashreinforce_molt.review.lag import LagExpectation, expected_lag
from flashreinforce_molt.review.molt_flags import Flag, molt_flags
from flashreinforce_molt.review.molt_rules import check_flags
from flashreinforce_molt.review.pins import Pin, pins_of
from flashreinforce_molt.review.plan import Plan, PlanRequest, make_plan


@dataclass(frozen=True)
class Review:
    """Everything that the dry run shows."""

    experiment: Experiment
    flags: tuple[Flag, ...]
    pins: tuple[Pin, ...]
    checks: tuple[Check, ...]
    plan: Plan | None
    lag: LagExpectation
    env: tuple[Variable, ...]
    command: tuple[str, ...]
    start: tuple[str, ...]
    run_dir: str

    @property
    def errors(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.level == "error")


def review_experiment(resolution: Resolution, request: Request | None = None) -> Review:
    """The review of a resolution; mistakes are error checks in it."""
    request = request or Request(variants=resolution.experiment.variants)
    experiment = resolution.experiment
    run_dir = request.output or f"runs/{experiment.recipe}"
    checks = list(resolution.checks)
    if experiment.engine == "molt":
        flags = molt_flags(experiment, run_dir, resume=request.resume)
        checks += check_flags(experiment, flags, checks)
    else:
        shown = (
            setting for setting in experiment.settings.values() if not setting.name.startswith(MOLT_GROUPS)
        )
        flags = tuple(_setting_flag(setting) for setting in shown)
    plan = _plan(experiment)
    checks += _plan_checks(experiment, plan)
    return Review(
        experiment=experiment,
        flags=flags,
        pins=pins_of(experiment),
        checks=tuple(checks),
        plan=plan,
        lag=_lag(experiment),
        env=variables_of(experiment),
        command=command_of(experiment, flags, request),
        start=start_lines(experiment, request),
        run_dir=run_dir,
    )


def _setting_flag(setting: Setting) -> Flag:
    group = setting.name.rpartition(".")[0] or "run"
    return Flag(group, setting.name, setting.value, setting.source, setting.layer, setting)


def _plan(experiment: Experiment) -> Plan | None:
    config, shape = experiment.config, model_shape(experiment.config)
    if shape is None or experiment.engine != "molt":
        return None
    cluster = config.cluster
    return make_plan(
        shape,
        PlanRequest(
            actor_gpus=actor_gpus(config),
            tensor_parallel=cluster.tensor_parallel,
            context_parallel=cluster.context_parallel,
            expert_parallel=cluster.expert_parallel,
            optimizer_offload=cluster.offload == "optimizer",
            parameter_offload=cluster.offload == "full",
            micro_batch=config.train.micro_batch_size or 1,
            batch_size=config.train.batch_size,
            context_tokens=config.rollout.max_context_tokens,
            new_tokens=config.rollout.max_new_tokens,
            engines=cluster.rollout_engines,
            engine_gpus=cluster.rollout_tensor_parallel,
            memory_share=cluster.rollout_memory_share,
            in_flight=config.rollout.in_flight,
            gpu_memory_gib=cluster.gpu_memory_gib,
            gradient_checkpointing=config.model.gradient_checkpointing,
        ),
    )


def _plan_checks(experiment: Experiment, plan: Plan | None) -> list[Check]:
    """What the plan finds wrong; an error only where no estimate is needed to see it."""
    if plan is None:
        return []
    checks = []
    fixes = {
        "learner": "raise cluster.actor_gpus_per_node or set cluster.offload=optimizer",
        "rollout": "raise cluster.rollout_tensor_parallel",
    }
    for role, memory in (("learner", plan.actor), ("rollout", plan.rollout)):
        if not memory.fits:
            level: Level = "error" if memory.certain > memory.available else "warning"
            message = f"does not fit: a GPU of the {role} needs {memory.text}; {fixes[role]}"
            checks.append(Check("memory", level, message, ("cluster.gpu_memory_gib",)))
    if plan.waits:
        checks.append(
            Check(
                "kv-cache",
                "warning",
                f"{plan.in_flight_per_engine} trajectories are in flight in each engine, but keys and values of "
                f"only {plan.full_length_slots} of full length fit; vLLM lets the others wait or starts them again",
            )
        )
    return checks or [Check("memory", "ok", "learner and rollout engines fit by the plan's estimate")]


def _lag(experiment: Experiment) -> LagExpectation:
    config = experiment.config
    return expected_lag(
        in_flight=config.rollout.in_flight,
        batch_size=config.train.batch_size,
        queue_depth=config.rollout.queue_depth,
        synchronous=config.engine.mode == "sync",
        bound=config.rollout.max_policy_lag,
    )
