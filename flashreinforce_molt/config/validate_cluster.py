"""Rules about GPUs, parallel sizes and the published shape of the model."""

from __future__ import annotations

import os

from flashreinforce_molt.config.experiment import Check, Experiment
from flashreinforce_molt.config.model_shapes import ModelShape, shape_of
from flashreinforce_molt.config.report import Report
from flashreinforce_molt.config.schema import Config


def actor_gpus(config: Config) -> int:
    """GPUs of the learner."""
    return config.cluster.actor_nodes * config.cluster.actor_gpus_per_node


def rollout_gpus(config: Config) -> int:
    """GPUs of all vLLM engines."""
    return config.cluster.rollout_engines * config.cluster.rollout_tensor_parallel


def reference_gpus(config: Config) -> int:
    """GPUs of a frozen reference model; the method has none."""
    uses = config.algorithm.kl_coefficient > 0 and config.algorithm.kl_reference == "model"
    return actor_gpus(config) if uses else 0


def engines_with_room(config: Config) -> int:
    """vLLM engines that fit beside learner and reference, each within one machine."""
    cluster = config.cluster
    free = [cluster.gpus_per_node] * cluster.nodes
    for share in (actor_gpus(config), reference_gpus(config)):
        for _ in range(cluster.actor_nodes if share else 0):
            fullest = max(range(cluster.nodes), key=lambda node: free[node])
            free[fullest] -= cluster.actor_gpus_per_node
    return sum(max(0, gpus) // cluster.rollout_tensor_parallel for gpus in free)


def data_parallel(config: Config) -> int:
    """Data-parallel size of the learner, rounded down."""
    return max(1, actor_gpus(config) // (config.cluster.tensor_parallel * config.cluster.context_parallel))


def model_shape(config: Config) -> ModelShape | None:
    """The published shape of the model; None when this package does not know it."""
    return shape_of(config.model.id, config.model.config)


def validate_cluster(experiment: Experiment) -> list[Check]:
    """Learner and rollout engines together fit into the cluster."""
    keys = ("nodes", "gpus_per_node", "actor_nodes", "actor_gpus_per_node", "rollout_engines")
    tensor = "cluster.rollout_tensor_parallel"
    names = [f"cluster.{key}" for key in keys]
    report = Report("cluster", experiment, *names, tensor, "algorithm.kl_reference")
    if experiment.engine != "molt":
        return []
    config, cluster = experiment.config, experiment.config.cluster
    have = cluster.nodes * cluster.gpus_per_node
    actor, rollout, reference = actor_gpus(config), rollout_gpus(config), reference_gpus(config)
    if actor + rollout + reference > have:
        extra = f" + {reference} for the reference" if reference else ""
        report.add(
            "error",
            f"{actor} GPUs for the learner + {rollout} for rollouts{extra} are more than the {have} of "
            f"{report.say(names[0])} and {report.say(names[1])}; lower {names[4]} or add machines "
            "(Molt would wait for ever)",
        )
    elif (room := engines_with_room(config)) < cluster.rollout_engines:
        report.add(
            "error",
            f"beside the learner the machines hold {room} engines of {report.say(tensor)} GPUs, not {report.say(names[4])}: "
            f"an engine stays within one machine; lower {tensor}, or give the learner whole machines",
        )
    for part, whole in ((names[2], names[0]), (names[3], names[1]), (tensor, names[1])):
        if experiment.settings[part].value > experiment.settings[whole].value:
            report.add("error", f"{report.say(part)} exceeds {report.say(whole)}; lower it, or add GPUs")
    spare = have - actor - rollout - reference
    return report.checks(
        f"{actor} GPUs for the learner, {rollout} for rollouts" + (f", {spare} unused" if spare else "")
    )


def validate_parallel(experiment: Experiment) -> list[Check]:
    """The batch divides over the learner's GPUs and microbatches."""
    tensor, context, batch = "cluster.tensor_parallel", "cluster.context_parallel", "train.batch_size"
    micro = "train.micro_batch_size"
    report = Report("parallel", experiment, tensor, context, batch, micro, "cluster.actor_gpus_per_node")
    if experiment.engine != "molt":
        return []
    config = experiment.config
    size, gpus = config.cluster.tensor_parallel * config.cluster.context_parallel, actor_gpus(config)
    if gpus % size:
        report.add(
            "error",
            f"{gpus} GPUs of the learner do not divide by {report.say(tensor)} times {report.say(context)}",
        )
        return report.checks("")
    replicas, per_pass = gpus // size, config.train.micro_batch_size or 1
    step = replicas * per_pass
    if config.train.batch_size % step:
        lower = config.train.batch_size - config.train.batch_size % step
        choices = " or ".join(str(choice) for choice in (lower, lower + step) if choice)
        report.add(
            "error",
            f"{report.say(batch)} is no multiple of {step} = {replicas} data-parallel replicas x {report.say(micro)}; "
            f"use {choices} (Molt would fail after loading the model)",
        )
    return report.checks(
        f"{config.train.batch_size} trajectories = {replicas} replicas x {config.train.batch_size // replicas}"
    )


def validate_model_parallel(experiment: Experiment) -> list[Check]:
    """Heads and experts divide over the GPUs; expert settings need experts."""
    expert, spread = "cluster.expert_parallel", "cluster.rollout_expert_parallel"
    tensor, engine = "cluster.tensor_parallel", "cluster.rollout_tensor_parallel"
    replay = "molt.routing_replay"
    report = Report("model-parallel", experiment, expert, spread, tensor, engine, replay, "model.id")
    config, shape = experiment.config, model_shape(experiment.config)
    if experiment.engine != "molt" or shape is None:
        return []
    if not shape.moe:
        for name, neutral in ((expert, 1), (spread, False), (replay, False)):
            if experiment.settings[name].value != neutral:
                off = str(neutral).lower()
                report.add(
                    "error", f"{report.say(name)} needs experts, but {config.model.id} has none; use {off}"
                )
    else:
        size, gpus = config.cluster.expert_parallel, actor_gpus(config)
        if shape.experts % size:
            report.add("error", f"{report.say(expert)} does not divide the {shape.experts} experts")
        if gpus % size:
            report.add("error", f"{report.say(expert)} does not divide the {gpus} GPUs of the learner")
    for name in (tensor, engine):
        if shape.heads % experiment.settings[name].value:
            report.add("error", f"{report.say(name)} does not divide the {shape.heads} attention heads")
    return report.checks("heads and experts divide over the GPUs")


def validate_context(experiment: Experiment) -> list[Check]:
    """The context fits the positions that the model was trained for, unless it is said otherwise."""
    context, allow = "rollout.max_context_tokens", "model.allow_longer_context"
    report = Report("context", experiment, context, allow, "model.id")
    config, shape = experiment.config, model_shape(experiment.config)
    if shape is None or config.model.id is None:
        return []
    if config.rollout.max_context_tokens > shape.positions:
        beyond = f"{report.say(context)} exceeds the {shape.positions:,} positions of {config.model.id}"
        if config.model.allow_longer_context:
            report.add("warning", f"{beyond}; accepted by {report.say(allow)}, untrained positions follow")
        else:
            report.add("error", f"{beyond}; lower it, or set {allow}=true")
    return report.checks(
        f"a context of {config.rollout.max_context_tokens:,} within the model's {shape.positions:,}"
    )


def validate_alfworld(experiment: Experiment) -> list[Check]:
    """ALFWorld reads its games from a folder that the machine must name."""
    report = Report("alfworld-data", experiment, "environment.name")
    if experiment.config.environment.name != "alfworld":
        return []
    folder = os.environ.get("ALFWORLD_DATA")
    if not folder:
        report.add(
            "warning", "ALFWORLD_DATA is not set here; the run needs it to name the folder of the games"
        )
    elif not os.path.isdir(folder):
        report.add("error", "ALFWORLD_DATA names no folder; point it at the folder of the ALFWorld games")
    return report.checks("ALFWORLD_DATA names a folder")
