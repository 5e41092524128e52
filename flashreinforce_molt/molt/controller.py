"""Our part of Molt's controller: no row is lost on the way to the ranks, and every update knows its policy lag.

Assumptions about Molt 0.2.1: `BaseRLTrainer.train_step` trains one batch and then publishes the weights; it calls
`balance_experiences` by its module's name; `BaseRLTrainer.broadcast_to_vllm` runs while the engines are paused.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from flashreinforce_molt.molt.learner import SEGMENT_KEY
from flashreinforce_molt.molt.native_checks import is_native
from flashreinforce_molt.molt.registration import expect_parameters
from flashreinforce_molt.molt.run_metrics import RunMetrics
from flashreinforce_molt.molt.version_stamps import lag_metrics, open_board, take_stamps


def extend(rl_trainer: ModuleType) -> None:
    """Wrap `balance_experiences` of `molt.trainer.rl_trainer` and what `BaseRLTrainer` does around a batch.

    Ray copies inherited methods into the actor class when Molt decorates it, before anybody can wrap them. So only
    what that class reaches by `super()` is wrapped on `BaseRLTrainer`; the others are wrapped on the instance.
    """
    base = rl_trainer.BaseRLTrainer
    expect_parameters(rl_trainer.balance_experiences, "experiences", "args")
    expect_parameters(base.__init__, "self", "strategy")
    expect_parameters(base.train_step, "self", "rollout_samples", "global_step")
    expect_parameters(base.broadcast_to_vllm, "self")
    expect_parameters(base.save_logs_and_checkpoints, "self", "global_step", "logs_dict")
    balance, init, broadcast = rl_trainer.balance_experiences, base.__init__, base.broadcast_to_vllm

    @functools.wraps(balance)
    def balance_whole(experiences: list[Any], args: Any) -> list[Any]:
        return balance(fill_microbatches(experiences, args) if is_native(args) else experiences, args)

    @functools.wraps(init)
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.flash_observer = Observer()
        self.train_step = self.flash_observer.around_step(self.train_step)
        self.save_logs_and_checkpoints = self.flash_observer.around_logs(self.save_logs_and_checkpoints)

    @functools.wraps(broadcast)
    def publish(self: Any) -> None:
        broadcast(self)
        self.flash_observer.weights_published()

    vars(rl_trainer)["balance_experiences"] = balance_whole
    base.__init__, base.broadcast_to_vllm = build, publish


class Observer:
    """Counts the versions of the policy in Molt's controller, measures the lag of every batch, writes our metrics."""

    def __init__(self) -> None:
        self.version = 0
        """Publications of weights so far."""
        self._board = open_board()
        self._metrics = RunMetrics.from_variable()

    def weights_published(self) -> None:
        import ray

        self.version += 1
        ray.get(self._board.publish.remote(self.version))

    def around_step(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        """`train_step` that reports the policy lag of its batch too."""

        def observed(rollout_samples: list[Any], global_step: int) -> tuple[dict[str, Any], int]:
            lag = measure_lag(rollout_samples, self.version)
            status, step = train_step(rollout_samples, global_step)
            return {**status, **lag}, step

        return observed

    def around_logs(self, save_logs: Callable[..., Any]) -> Callable[..., Any]:
        """`save_logs_and_checkpoints` that writes a line of `metrics.jsonl` before the checkpoint."""

        def observed(global_step: int, logs_dict: Any = None, client_states: Any = None) -> None:
            if self._metrics is not None:
                self._metrics.append(global_step, logs_dict or {})
            save_logs(global_step, logs_dict, client_states)

        return observed


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
