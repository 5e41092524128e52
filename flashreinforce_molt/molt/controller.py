"""Our part of Molt's controller: no row is lost on the way to the ranks, and every update knows its policy lag.

Assumptions about Molt 0.2.1: `BaseRLTrainer.train_step` trains one batch and then publishes the weights; it calls
`balance_experiences` by its module's name; `BaseRLTrainer.broadcast_to_vllm` runs while the engines are paused.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from types import ModuleType
from typing import Any

import torch

from flashreinforce_molt.molt.learner import SEGMENT_KEY
from flashreinforce_molt.molt.native_checks import is_native
from flashreinforce_molt.molt.registration import expect_parameters
from flashreinforce_molt.molt.run_metrics import RunMetrics
from flashreinforce_molt.molt.version_stamps import lag_metrics, open_board, take_stamps


def extend(rl_trainer: ModuleType) -> None:
    """Wrap `molt.trainer.rl_trainer`: `balance_experiences` and four methods of `BaseRLTrainer`."""
    base = rl_trainer.BaseRLTrainer
    expect_parameters(rl_trainer.balance_experiences, "experiences", "args")
    expect_parameters(base.__init__, "self", "strategy")
    expect_parameters(base.train_step, "self", "rollout_samples", "global_step")
    expect_parameters(base.broadcast_to_vllm, "self")
    expect_parameters(base.save_logs_and_checkpoints, "self", "global_step", "logs_dict")
    balance, init, train_step = rl_trainer.balance_experiences, base.__init__, base.train_step
    broadcast, save_logs = base.broadcast_to_vllm, base.save_logs_and_checkpoints

    @functools.wraps(balance)
    def balance_whole(experiences: list[Any], args: Any) -> list[Any]:
        return balance(fill_microbatches(experiences, args) if is_native(args) else experiences, args)

    @functools.wraps(init)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.flash_board, self.flash_version = open_board(), 0
        self.flash_metrics = RunMetrics.from_variable()

    @functools.wraps(train_step)
    def train(self: Any, rollout_samples: list[Any], global_step: int) -> tuple[dict[str, Any], int]:
        lag = measure_lag(rollout_samples, self.flash_version)
        status, step = train_step(self, rollout_samples, global_step)
        return {**status, **lag}, step

    @functools.wraps(broadcast)
    def publish(self: Any) -> None:
        import ray

        broadcast(self)
        self.flash_version += 1
        ray.get(self.flash_board.publish.remote(self.flash_version))

    @functools.wraps(save_logs)
    def save(self: Any, global_step: int, logs_dict: Any = None, client_states: Any = None) -> None:
        if self.flash_metrics is not None:
            self.flash_metrics.append(global_step, logs_dict or {})
        save_logs(self, global_step, logs_dict, client_states)

    vars(rl_trainer)["balance_experiences"] = balance_whole
    base.__init__, base.train_step = build, train
    base.broadcast_to_vllm, base.save_logs_and_checkpoints = publish, save


def fill_microbatches(experiences: list[Any], args: Any) -> list[Any]:
    """Pad the rows of a batch so that every rank gets the same number of full microbatches.

    Molt drops what does not divide: rows of a scattered trajectory, or the rest of the last batch. A padding row is a
    copy of the shortest row without policy tokens; it belongs to the same trajectory and weighs nothing.
    """
    seen: Counter[str] = Counter()
    for experience in experiences:
        trajectory = experience.rollout_ids[0]
        experience.info[SEGMENT_KEY] = str(seen[trajectory])
        seen[trajectory] += 1
    ranks = args.actor.num_nodes * args.actor.num_gpus_per_node  # tensor and context parallelism are refused
    missing = -len(experiences) % (ranks * args.train.micro_batch_size)
    shortest = min(experiences, key=lambda experience: float(experience.total_length))
    return [*experiences, *(_padding_like(shortest) for _ in range(missing))]


def _padding_like(experience: Any) -> Any:
    row = copy.copy(experience)
    row.info = dict(experience.info)
    row.action_mask = torch.zeros_like(experience.action_mask)
    row.response_length = torch.zeros_like(experience.response_length)
    return row


def measure_lag(rollout_samples: list[Any], learner_version: int) -> dict[str, float]:
    """Take the version stamps out of the rows of a batch and report its policy lag."""
    stamps = [take_stamps(sample.info) for sample in rollout_samples]
    return lag_metrics([stamp for stamp in stamps if stamp is not None], learner_version)
