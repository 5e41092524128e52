"""From a run's settings to its Megatron learner."""

from __future__ import annotations

from importlib.util import find_spec

from flashreinforce_molt.config import Config, SettingError
from flashreinforce_molt.learners.megatron.layout import MegatronLayout
from flashreinforce_molt.learners.megatron.team import MegatronTeam
from flashreinforce_molt.models import Policy


def learner_layout(config: Config) -> tuple[MegatronLayout, int]:
    """The parallel layout that `cluster` asks for, and the number of learner ranks on this machine.

    On GPUs every learner GPU is a rank. On a CPU ranks are processes that compete for cores, so there are only as
    many as the tensor- and context-parallel sizes need. Sequence parallelism comes with Transformer Engine.
    """
    cluster = config.cluster
    if cluster.actor_nodes > 1:
        raise SettingError(
            f"cluster.actor_nodes={cluster.actor_nodes}: the Megatron engine starts learner ranks on one machine; use 1"
        )
    layout = MegatronLayout(
        tensor_parallel=cluster.tensor_parallel,
        context_parallel=cluster.context_parallel,
        expert_parallel=cluster.expert_parallel,
        sequence_parallel=cluster.tensor_parallel > 1 and find_spec("transformer_engine") is not None,
    )
    if config.engine.device == "cuda":
        ranks = cluster.actor_gpus_per_node
    else:
        ranks = max(cluster.tensor_parallel * cluster.context_parallel, cluster.expert_parallel)
    layout.data_parallel(ranks)
    return layout, ranks


def start_team(policy: Policy, config: Config) -> MegatronTeam:
    """Start the learner ranks of a run; SettingError when Megatron is missing or the layout does not fit."""
    if find_spec("megatron") is None or find_spec("megatron.core") is None:
        raise SettingError(
            "--engine megatron needs megatron-core; install it with pip install -e '.[megatron]'"
        )
    layout, ranks = learner_layout(config)
    from flashreinforce_molt.learners.megatron.architecture import validate_architecture

    validate_architecture(policy.model.config, layout)
    return MegatronTeam(policy, config, layout, ranks)
