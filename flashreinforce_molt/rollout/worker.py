"""A rollout worker: one process that plays tasks with the newest weights it may use.

Nothing is written to disk here. The learner's process owns the data order, the tickets and the ledger.
"""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
import traceback
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from flashreinforce_molt.environments import Suite, Task, make_suite, opened
from flashreinforce_molt.models import rollout_model
from flashreinforce_molt.rollout.episodes import Dropped, EpisodeRunner, Limits
from flashreinforce_molt.rollout.generator import SlotGenerator
from flashreinforce_molt.rollout.sampling import Sampling
from flashreinforce_molt.rollout.weights import WeightStore
from flashreinforce_molt.trajectory import Trajectory


@dataclass(frozen=True)
class WorkerPlan:
    """Everything a worker needs to begin; crosses the process boundary once."""

    name: str
    model_config: PreTrainedConfig
    dtype: str
    device: str
    threads: int
    tokenizer: PreTrainedTokenizerBase
    stop_tokens: frozenset[int]
    environment: str
    environment_options: dict[str, Any]
    slots: int
    limits: Limits
    sampling: Sampling
    seed: int
    max_policy_lag: int | None
    drain_before_new_weights: bool
    lockstep: bool


@dataclass(frozen=True)
class Started:
    """Learner -> worker: play these tasks, in this order."""

    tasks: list[tuple[int, Task]]


@dataclass(frozen=True)
class NewVersion:
    """Learner -> worker: newer weights are in the store."""


@dataclass(frozen=True)
class WorkerFailure:
    """Worker -> learner: the worker cannot go on."""

    name: str
    detail: str


def run_worker(plan: WorkerPlan, store: WeightStore, connection: Connection) -> None:
    """Body of the process; ends when the learner's end of the connection closes."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # both are the learner's to handle, also when sent to the group
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(plan.threads)
    torch.use_deterministic_algorithms(plan.lockstep)
    try:
        asyncio.run(_Worker(plan, store, connection).serve())
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the learner is gone; so is the work
    except Exception:
        connection.send(WorkerFailure(plan.name, traceback.format_exc()))


class _Sender:
    """Sends from a thread of its own, so that a full pipe never stops the worker from reading."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def send(self, item: Trajectory | Dropped) -> None:
        self._items.put(item)

    def close(self) -> None:
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._items.get()) is not None:
                self._connection.send(item)
        except OSError:
            pass  # the learner is gone; the reading side ends the worker


class _Worker:
    def __init__(self, plan: WorkerPlan, store: WeightStore, connection: Connection) -> None:
        self.plan, self.store, self.connection = plan, store, connection
        self.backlog: deque[tuple[int, Task]] = deque()
        self.model = rollout_model(plan.model_config, plan.dtype, plan.device)
        self.generator = SlotGenerator(
            self.model,
            slots=plan.slots,
            max_context=plan.limits.max_context_tokens,
            stop_tokens=plan.stop_tokens,
            sampling=plan.sampling,
        )
        self.open = True

    async def serve(self) -> None:
        suite = make_suite(self.plan.environment, self.plan.environment_options)
        async with opened(suite):
            await self._serve(suite)

    async def _serve(self, suite: Suite) -> None:
        plan = self.plan
        self.runner = EpisodeRunner(
            self.generator, suite, plan.tokenizer, plan.limits, seed=plan.seed, lockstep=plan.lockstep
        )
        self.generator.version = self.store.read_into(self.model)
        sender = _Sender(self.connection)
        loop = asyncio.get_running_loop()
        loop.add_reader(self.connection.fileno(), self._read)
        try:
            while self.open:
                await self._take_new_weights()
                self._admit()
                for ended in await self.runner.advance():
                    sender.send(ended)
                if self.runner.idle and self.open and not self._can_admit():
                    await self.runner.changed.wait()
        finally:
            loop.remove_reader(self.connection.fileno())
            await self.runner.close()
            sender.close()

    def _read(self) -> None:
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, Started):
                    self.backlog.extend(message.tasks)
        except (EOFError, OSError):
            self.open = False
            asyncio.get_running_loop().remove_reader(self.connection.fileno())
        self.runner.changed.set()

    async def _take_new_weights(self) -> None:
        newest = self.store.version
        if newest == self.generator.version:
            return
        if self.plan.max_policy_lag is not None:
            await self.runner.drop_older_than(newest - self.plan.max_policy_lag)
        if not self.plan.drain_before_new_weights or self.runner.free == self.generator.slots:
            self.generator.version = self.store.read_into(self.model)

    def _can_admit(self) -> bool:
        waits_for_weights = (
            self.plan.drain_before_new_weights and self.store.version != self.generator.version
        )
        return bool(self.backlog) and self.runner.free > 0 and not waits_for_weights

    def _admit(self) -> None:
        while self._can_admit():
            trajectory_id, task = self.backlog.popleft()
            self.runner.start(trajectory_id, task)
