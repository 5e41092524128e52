"""A review as plain data with stable keys, for `--format json` and for the provenance of a run."""

from __future__ import annotations

from typing import Any

from flashreinforce_molt.config.experiment import Setting
from flashreinforce_molt.config.validate_batch import prompts_per_update
from flashreinforce_molt.config.validate_cluster import actor_gpus, data_parallel, rollout_gpus
from flashreinforce_molt.review.document import Review


def as_data(review: Review) -> dict[str, Any]:
    """The keys are documented in `docs/training.md`; they stay."""
    experiment, plan = review.experiment, review.plan
    config = experiment.config
    planned: dict[str, Any] = {
        "updates": config.train.updates,
        "trajectories_per_update": config.train.batch_size,
        "prompts_per_update": prompts_per_update(config),
        "policy_tokens_per_update_limit": config.train.batch_size * config.rollout.max_new_tokens,
        "policy_tokens_per_update_expected": None,
        "policy_lag": {
            "in_flight": review.lag.in_flight,
            "in_queue": review.lag.in_queue,
            "low": review.lag.low,
            "high": review.lag.high,
            "measured": False,
        },
    }
    if experiment.engine == "molt":
        cluster = config.cluster
        planned["gpus"] = {
            "learner": actor_gpus(config),
            "rollout": rollout_gpus(config),
            "available": cluster.nodes * cluster.gpus_per_node,
            "nodes": cluster.nodes,
            "learner_nodes": cluster.actor_nodes,
            "engines": cluster.rollout_engines,
            "data_parallel": data_parallel(config),
        }
    if plan is not None:
        planned |= {
            "fits": plan.fits,
            "parameters": plan.parameters,
            "active_parameters": plan.active_parameters,
            "learner_gpu_bytes": dict(plan.actor.parts) | {"usable": plan.actor.available},
            "rollout_gpu_bytes": dict(plan.rollout.parts) | {"usable": plan.rollout.available},
            "kv_capacity_tokens_per_engine": plan.kv_capacity_tokens,
            "full_length_trajectories_per_engine": plan.full_length_slots,
        }
    return {
        "recipe": experiment.recipe,
        "variants": list(experiment.variants),
        "engine": experiment.engine,
        "pins": {
            kind: {
                pin.name: {"version": pin.version, "source": pin.source}
                for pin in review.pins
                if pin.kind == kind
            }
            for kind in ("model", "data", "package")
        },
        "flags": {
            flag.name: {
                "value": _plain(flag.value),
                "source": flag.source,
                "layer": flag.layer,
                "replaced": replaced(flag.setting),
            }
            for flag in review.flags
        },
        "checks": [
            {"id": check.id, "level": check.level, "message": check.message, "settings": list(check.settings)}
            for check in review.checks
        ],
        "plan": planned,
        "command": list(review.command),
        "env": {variable.name: variable.value for variable in review.env},
        "start": list(review.start),
    }


def replaced(setting: Setting | None) -> list[dict[str, Any]]:
    """What the layers below had said of a setting, oldest first, its default left out."""
    said = () if setting is None else setting.replaced
    return [
        {"value": _plain(value), "source": source, "layer": layer}
        for layer, value, source in said
        if layer != "default"
    ]


def _plain(value: Any) -> Any:
    """JSON has no infinity: the word that the command line takes stands for it."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return "inf" if value == float("inf") and isinstance(value, float) else value
