"""What Molt would change silently, refuse late, or not do at all."""

from __future__ import annotations

from flashreinforce_molt.config.experiment import Check, Experiment
from flashreinforce_molt.config.locks import short_revision
from flashreinforce_molt.config.model_shapes import MODEL_SHAPES
from flashreinforce_molt.config.report import Derived, Report
from flashreinforce_molt.config.validate_batch import prompts_per_update

_LOCAL_ONLY = {
    "model.config": {},
    "warm_start.steps": 0,
    "rollout.top_k": 0,
    "rollout.min_p": 0.0,
    "rollout.repetition_penalty": 1.0,
    "rollout.max_policy_lag": None,
    "environment.max_retries": 0,
    "model.trust_remote_code": False,
}
"""Settings that Molt has no flag for, with the value that needs none."""

_STALE_TOKENS = (
    "; Molt warns that its masking of stale tokens is inactive, which is right here: ratio and gate act on every "
    "token instead"
)
IDLE_ON_MOLT = (
    "engine.workers",
    "engine.max_worker_restarts",
    "engine.threads",
    "engine.device",
    "model.alphabet",
    "rollout.publication",
    "rollout.allow_truncated_sampling",
    "train.logprob_chunk_tokens",
    "train.check_on_policy",
    "train.max_nonfinite_updates",
    "warm_start.batch_size",
    "warm_start.lr",
    "warm_start.correct_fraction",
    "evaluation.size",
    "telemetry.live",
    "telemetry.dump_trajectories",
)
"""Settings that nothing reads on Molt."""

MOLT_GROUPS = ("cluster.", "molt.", "data.")
"""Groups of settings that only the Molt engine reads."""
_MOLT_ONLY = ("evaluation.suites", "evaluation.at_start", "evaluation.max_new_tokens")


def auto_model_path(experiment: Experiment) -> Derived:
    """Molt takes no revision, so the pinned snapshot must be a folder."""
    model = experiment.config.model
    if (
        experiment.engine != "molt"
        or model.id is None
        or "/" not in model.id
        or model.id.startswith(("/", "."))
    ):
        return {} if model.id is None else {"molt.model_path": (model.id, "model.id is a folder")}
    name = model.id.rpartition("/")[2]
    short = f"-{short_revision(model.revision, 8)}".replace("/", "-") if model.revision else ""
    return {"molt.model_path": (f"models/{name}{short}", "the pinned snapshot, since Molt takes no revision")}


def auto_prefix_caching(experiment: Experiment) -> Derived:
    """Routing replay reads the choices of cached prefixes too."""
    if experiment.engine == "molt" and experiment.config.molt.routing_replay:
        return {"molt.prefix_caching": (True, "molt.routing_replay=true needs it")}
    return {}


def validate_routing_replay(experiment: Experiment) -> list[Check]:
    """Molt would turn prefix caching on for routing replay, whatever was asked."""
    replay, caching = "molt.routing_replay", "molt.prefix_caching"
    report = Report("routing-replay", experiment, replay, caching)
    config = experiment.config
    if experiment.engine != "molt" or not config.molt.routing_replay:
        return []
    if not config.molt.prefix_caching:
        report.add(
            "error",
            f"{report.say(caching)} contradicts {report.say(replay)}, for which Molt would turn it on; set one of them "
            "otherwise",
        )
    return report.checks(
        "the learner replays the experts that the rollout chose; prefix caching is on for it"
    )


def validate_engine(experiment: Experiment) -> list[Check]:
    """Nothing that somebody wrote is ignored by the engine."""
    report = Report("engine", experiment, *_LOCAL_ONLY)
    if experiment.engine == "molt":
        for name, neutral in _LOCAL_ONLY.items():
            setting = experiment.settings[name]
            if setting.value != neutral:
                report.add("error", f"{report.say(name)}: Molt cannot do this; leave it {neutral!r}")
        for name in IDLE_ON_MOLT:
            if experiment.settings[name].chosen:
                report.add("warning", f"{report.say(name)} has no effect on the engine molt")
        if experiment.config.model.dtype != "bfloat16":
            report.add("error", f"{report.say('model.dtype')}: Molt computes in bfloat16 here")
        if experiment.config.model.id is None:
            report.add("error", "Molt needs model.id: a Hugging Face id or a folder")
        elif experiment.config.model.id not in MODEL_SHAPES:
            report.add(
                "warning",
                f"{report.say('model.id')}: Molt runs Python code that a model repository ships; read it first",
            )
    elif experiment.engine == "local":
        for name, setting in experiment.settings.items():
            molts = name in _MOLT_ONLY or name.startswith(MOLT_GROUPS)
            if molts and setting.written and setting.layer != "base":
                report.add("warning", f"{report.say(name)} has no effect on the engine local")
    return report.checks(f"the engine {experiment.engine} honours every setting")


def validate_partial_rollout(experiment: Experiment) -> list[Check]:
    """More trajectories in flight than one batch is partial rollout; Molt would turn it on unasked."""
    partial, slots, batch = "molt.partial_rollout", "rollout.in_flight", "train.batch_size"
    replay, mode, publication = "molt.routing_replay", "engine.mode", "rollout.publication"
    report = Report("partial-rollout", experiment, partial, slots, batch, replay, mode, publication)
    if experiment.engine != "molt":
        return []
    config = experiment.config
    surplus = config.rollout.in_flight > config.train.batch_size
    if surplus and not config.molt.partial_rollout:
        report.add(
            "error",
            f"{report.say(slots)} exceeds {report.say(batch)}, so Molt would silently turn partial rollout on; "
            f"set {partial}=true, or {slots}={config.train.batch_size}",
        )
    if config.molt.partial_rollout or surplus:
        if config.molt.routing_replay:
            report.add(
                "error",
                f"{report.say(replay)} loses the captured routing of preempted trajectories; set {partial}=false "
                f"and {slots} to at most {config.train.batch_size}",
            )
        if config.engine.mode == "sync":
            report.add("error", f"{report.say(mode)} contradicts {report.say(partial)}; set {partial}=false")
        if config.rollout.publication == "between_trajectories":
            report.add(
                "error",
                f"{report.say(publication)} contradicts {report.say(partial)}, under which weights change in "
                "the middle of trajectories",
            )
        return report.checks(
            f"partial rollout is on: up to {config.rollout.in_flight} trajectories live on across updates, and "
            "their tokens are corrected by the recorded log-probs"
            + (_STALE_TOKENS if config.objective.importance_correction else "")
        )
    return report.checks("each batch is finished before the next begins, so no trajectory spans an update")


def validate_molt_queue(experiment: Experiment) -> list[Check]:
    """Stale data need the correction, and a queue of several batches is stale."""
    depth, mode, native = "rollout.queue_depth", "engine.mode", "molt.native"
    correction, slots = "objective.importance_correction", "rollout.in_flight"
    report = Report("molt-queue", experiment, depth, mode, native, correction, slots, "molt.partial_rollout")
    if experiment.engine != "molt":
        return []
    config = experiment.config
    stale = config.rollout.queue_depth > 1 or config.molt.partial_rollout
    if stale and not config.objective.importance_correction and not config.molt.native:
        report.add(
            "error",
            f"{report.say(correction)} with {report.say(depth)}: Molt refuses stale data without correction; set "
            f"{depth}=1 and molt.partial_rollout=false, or {native}=true for the ablation",
        )
    if config.engine.mode == "sync" and config.rollout.queue_depth > 1:
        report.add(
            "error", f"{report.say(mode)} with {report.say(depth)} is stale all the same; set {depth}=1"
        )
    if config.rollout.in_flight % config.train.rollouts_per_prompt:
        report.add("error", f"{report.say(slots)} is no multiple of train.rollouts_per_prompt")
    uncorrected = not config.molt.native and not config.objective.importance_correction
    if uncorrected and config.engine.mode == "async" and not stale:
        report.add(
            "warning", f"each batch is one update old and nothing corrects it; {mode}=sync removes that lag"
        )
    if config.engine.mode == "async" and config.rollout.queue_depth == 1:
        return report.checks(
            "one batch is generated while the one before it trains: one update old, not zero"
        )
    if config.engine.mode == "sync":
        return report.checks("each batch is generated after the update before it")
    return report.checks(f"up to {config.rollout.queue_depth} batches are generated ahead")


def validate_native(experiment: Experiment) -> list[Check]:
    """What Molt's own flags can express, and what our loss does not prove yet."""
    native, fraction = "molt.native", "objective.negative_token_fraction"
    sizes = ("cluster.tensor_parallel", "cluster.context_parallel")
    report = Report("native", experiment, native, fraction, "objective.aggregation", "molt.packing", *sizes)
    if experiment.engine != "molt":
        return []
    config, objective = experiment.config, experiment.config.objective
    if not config.molt.native and config.algorithm.name == "flashreinforce":
        base = {
            fraction: 1.0,
            "objective.ratio_gradient": "detached",
            "objective.log_ratio_limit": 30.0,
            "objective.importance_correction": True,
        }
        for name, neutral in base.items():
            if experiment.settings[name].value != neutral:
                report.add("error", f"{report.say(name)} needs our loss; set {native}=true, or use {neutral}")
        if objective.aggregation == "constant-length":
            report.add(
                "error", f"{report.say('objective.aggregation')} is unknown to Molt; set {native}=true"
            )
    if config.molt.packing:
        report.add(
            "error",
            f"{report.say('molt.packing')} is refused: our loss is not proven on packed rows, and without it Molt packs "
            "only with the attention te, which model.attention does not offer; set molt.packing=false",
        )
    if config.molt.native:
        for name in sizes:
            if experiment.settings[name].value > 1:
                report.add(
                    "error", f"{report.say(name)} is not proven with our loss; use 1, or {native}=false"
                )
    return report.checks(
        "our registered loss and estimator"
        if config.molt.native
        else f"Molt's own flags, {prompts_per_update(config)} prompts in a batch"
    )
