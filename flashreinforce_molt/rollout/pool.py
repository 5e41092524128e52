"""The learner's side of rollout: issues tasks, collects finished trajectories, bounds how far ahead workers run.

Two bounds hold by construction, because a task is only issued while both leave room:

* `in_flight + queue_depth * B` trajectories are in flight or wait, counted until the learner takes them;
* with `max_policy_lag = L`, `(L + 1) * B` trajectories are issued and not yet retired by a published update.

A trajectory that others overtook can still come too late. It is then dropped under the reason `policy_lag`:
by the worker while it runs, or here before a batch is formed. So no token older than L is ever trained.

A worker that dies (killed, out of memory) is started again, up to a limit, and what it had in flight is issued again
under the same ids: a trajectory is its seed and its id, so nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing as multiprocessing
from torch import nn

from flashreinforce_molt.environments import Task, TaskSource
from flashreinforce_molt.rollout.episodes import Dropped
from flashreinforce_molt.rollout.ledger import Ledger
from flashreinforce_molt.rollout.weights import WeightStore
from flashreinforce_molt.rollout.worker import NewVersion, Started, WorkerFailure, WorkerPlan, run_worker
from flashreinforce_molt.trajectory import Trajectory

FINAL = ("policy_lag", "prompt_too_long")
"""Reasons of a drop that another try would only repeat."""


class RolloutError(RuntimeError):
    """Rollout cannot go on; the message names the worker or the environment and the cause."""


class WaitInterrupted(Exception):
    """`RolloutPool.take` was asked to stop waiting; no trajectory was taken."""


@dataclass(frozen=True)
class Bounds:
    """How far rollout may run ahead; counts are trajectories, the lag is in updates."""

    batch_size: int
    in_flight: int
    queue_depth: int
    max_policy_lag: int | None

    def may_issue(self, issued: int, dropped: int, taken: int, retired: int) -> int:
        """Trajectories that may be issued now. `taken` entered a batch, `retired` belong to published updates."""
        room = self.in_flight + self.queue_depth * self.batch_size - (issued - dropped - taken)
        if self.max_policy_lag is not None:
            room = min(room, (self.max_policy_lag + 1) * self.batch_size - (issued - dropped - retired))
        return max(room, 0)


@dataclass(eq=False)
class _Worker:
    plan: WorkerPlan
    process: BaseProcess
    connection: Connection
    assigned: set[int] = field(default_factory=set)

    @property
    def capacity(self) -> int:
        """Tasks it can be given: its slots, and a few more so that a slot never waits for the next task."""
        ahead = self.plan.slots if self.plan.lockstep else max(1, self.plan.slots // 4)
        return self.plan.slots + ahead - len(self.assigned)


class RolloutPool:
    """Owns the worker processes. `take` and `publish` belong to the learner's thread.

    A thread of its own talks to the workers, so that tasks go out and trajectories come in while the learner
    computes. `on_message` is called from that thread.
    """

    def __init__(
        self,
        plans: list[WorkerPlan],
        store: WeightStore,
        tasks: TaskSource,
        bounds: Bounds,
        *,
        ledger: Ledger | None = None,
        position: int = 0,
        finished: Sequence[Trajectory] = (),
        max_restarts: int = 0,
        max_retries: int = 0,
        on_message: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.plans, self.store, self.tasks, self.bounds = plans, store, tasks, bounds
        self.ledger = ledger or Ledger()
        self.position = position
        """First position of the data order that was never issued; the task at position i is trajectory i."""
        self.max_restarts, self.max_retries = max_restarts, max_retries
        self.restarts = self.reissued = self.retried = 0
        """Workers that were started again, trajectories issued again because of it, and because an episode was lost."""
        self._retries: Counter[int] = Counter()
        self._on_message = on_message
        waiting = {trajectory.trajectory_id for trajectory in finished}
        self._again = deque(i for i in self.ledger.unsettled(position) if i not in waiting)
        self._issued = self.ledger.settled_total + len(finished)
        self._taken = self._retired = self.ledger.trained_total
        self._ready = deque(finished)
        self._changed = threading.Condition()
        self._failure: Exception | None = None
        self._drops_in_a_row = 0
        self._tokens_finished = 0
        self._announced = self.store.version
        self._workers: list[_Worker] = []
        self._thread = threading.Thread(target=self._serve, name="rollout pool", daemon=True)
        self._wake_read, self._wake_write = Pipe(duplex=False)
        self._closing = self._stop_waiting = False

    def start(self) -> None:
        """Start the workers and begin to issue tasks."""
        self._workers = [self._begin(plan) for plan in self.plans]
        self._thread.start()

    def take(self, count: int) -> list[Trajectory]:
        """The next `count` finished trajectories in order of arrival; waits until they are there.

        Raises RolloutError when a worker died or the environment fails every episode, and WaitInterrupted
        after `stop_waiting`.
        """
        with self._changed:
            while True:
                if self._stop_waiting:
                    raise WaitInterrupted
                self._drop_late(self.store.version)
                if self._failure is not None:
                    raise self._failure
                if len(self._ready) >= count:
                    break
                self._changed.wait()
            batch = [self._ready.popleft() for _ in range(count)]
            self.ledger.train(trajectory.trajectory_id for trajectory in batch)
            self._taken += count
        self._wake()
        return batch

    def discard(self, count: int, reason: str) -> None:
        """Count the batch that was just taken as dropped instead of trained, so that its room is given anew."""
        with self._changed:
            self.ledger.drop_trained(count, reason)
            self._taken -= count
        self._wake()

    def stop_waiting(self) -> None:
        """Make `take` raise WaitInterrupted, now and later; may be called from a signal handler."""
        with self._changed:
            self._stop_waiting = True
            self._changed.notify_all()

    def publish(self, model: nn.Module, version: int) -> None:
        """Hand new weights to the workers; the batch that made them is retired."""
        self.store.publish(model, version)
        with self._changed:
            self._retired = self._taken
        self._wake()

    @property
    def tokens_finished(self) -> int:
        """Policy tokens of all trajectories that have arrived so far."""
        return self._tokens_finished

    def snapshot(self) -> tuple[dict[str, Any], int, list[Trajectory]]:
        """Ledger state, position and finished trajectories that wait, as of one moment, for a checkpoint."""
        with self._changed:
            return self.ledger.state(), self.position, list(self._ready)

    def close(self) -> None:
        """End every worker. Safe on any path and more than once."""
        self._closing = True
        if self._thread.is_alive():
            self._wake()
            self._thread.join(timeout=5)
        for worker in self._workers:
            worker.connection.close()  # a worker ends when it reads the end of its connection
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()

    def _begin(self, plan: WorkerPlan) -> _Worker:
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_worker, args=(plan, self.store, theirs), name=plan.name, daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(plan, process, ours)

    def _restart(self, dead: _Worker) -> None:
        """Begin a worker in the place of a dead one, whose trajectories are issued again before any other."""
        obituary = _obituary(dead)
        if dead.plan.lockstep and self.max_restarts:
            raise RolloutError(f"{obituary}; engine.deterministic=true restarts none: go on with --resume")
        if self.restarts >= self.max_restarts:
            raise RolloutError(
                f"{obituary}; engine.max_worker_restarts={self.max_restarts} are used up: find out what kills it (out of "
                "memory? see dmesg), then go on with --resume"
            )
        dead.connection.close()
        with self._changed:
            self._again.extendleft(sorted(dead.assigned, reverse=True))
            self._issued -= len(dead.assigned)
            self.restarts += 1
            self.reissued += len(dead.assigned)
        self._workers[self._workers.index(dead)] = self._begin(dead.plan)
        self._on_message(f"{obituary}; started again ({self.restarts} of {self.max_restarts})")

    def _wake(self) -> None:
        self._wake_write.send_bytes(b"")

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._issue()
                sources = [self._wake_read, *(worker.connection for worker in self._workers)]
                for source in wait(sources):
                    if source is self._wake_read:
                        self._wake_read.recv_bytes()
                    else:
                        self._receive(next(w for w in self._workers if w.connection is source))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        if not self._closing:
            self._on_message(str(error))

    def _receive(self, worker: _Worker) -> None:
        try:
            item = worker.connection.recv()
        except (EOFError, OSError):
            self._restart(worker)
            return
        if isinstance(item, WorkerFailure):
            raise RolloutError(_last_words(item))
        worker.assigned.discard(item.trajectory_id)
        with self._changed:
            if isinstance(item, Dropped):
                self._note_drop(item)
            else:
                self._drops_in_a_row = 0
                del self._retries[item.trajectory_id]
                self._tokens_finished += len(item.behavior_log_probs)
                self._ready.append(item)
            self._changed.notify_all()

    def _note_drop(self, drop: Dropped) -> None:
        again = drop.reason not in FINAL and self._retries[drop.trajectory_id] < self.max_retries
        if again:
            self._retries[drop.trajectory_id] += 1
            self.retried += 1
            self._again.append(drop.trajectory_id)
            self._issued -= 1
        else:
            del self._retries[drop.trajectory_id]
            self.ledger.drop(drop.trajectory_id, drop.reason)
        if drop.reason == "policy_lag":
            return
        if (self.retried if again else self.ledger.dropped[drop.reason]) == 1:
            fate = "is played again" if again else "dropped"
            self._on_message(f"trajectory {drop.trajectory_id} {fate}: {drop.reason} ({drop.detail})")
        self._drops_in_a_row += 1
        if self._drops_in_a_row >= max(8, self.bounds.batch_size):
            raise RolloutError(
                f"{self._drops_in_a_row} trajectories in a row were dropped and none finished; "
                f"the last one: {drop.reason} ({drop.detail})"
            )

    def _drop_late(self, version: int) -> None:
        if self.bounds.max_policy_lag is None:
            return
        oldest = version - self.bounds.max_policy_lag
        late = [t.trajectory_id for t in self._ready if int(t.policy_versions.min()) < oldest]
        if late:
            self._ready = deque(t for t in self._ready if t.trajectory_id not in late)
            for trajectory_id in late:
                self.ledger.drop(trajectory_id, "policy_lag")
            self._wake()

    def _issue(self) -> None:
        """Send what the bounds allow, to the worker with most room."""
        with self._changed:
            dropped = self.ledger.dropped_total
            allowed = self.bounds.may_issue(self._issued, dropped, self._taken, self._retired)
        batches: dict[_Worker, list[tuple[int, Task]]] = {}
        while allowed > 0:
            worker = max(self._workers, key=lambda worker: worker.capacity)
            if worker.capacity <= 0:
                break
            trajectory_id = self._next_id()
            batches.setdefault(worker, []).append((trajectory_id, self.tasks[trajectory_id]))
            worker.assigned.add(trajectory_id)
            allowed -= 1
        announce = self.store.version != self._announced
        self._announced = self.store.version
        for worker in self._workers:
            tasks = batches.get(worker)
            with suppress(
                OSError
            ):  # it died: the end of its connection is read next, and then it is replaced
                if tasks:
                    worker.connection.send(Started(tasks))
                elif announce:
                    worker.connection.send(NewVersion())

    def _next_id(self) -> int:
        with self._changed:
            self._issued += 1
            if self._again:
                return self._again.popleft()
            self.position += 1
            return self.position - 1


def _last_words(failure: WorkerFailure) -> str:
    return f"rollout worker {failure.name} failed:\n{failure.detail}"


def _obituary(worker: _Worker) -> str:
    """Which worker died, how, and what it held; its own words where it left some."""
    with suppress(OSError, EOFError):
        while worker.connection.poll():
            if isinstance(item := worker.connection.recv(), WorkerFailure):
                return _last_words(item)
    worker.process.join(timeout=2)
    code = worker.process.exitcode
    cause = (
        f"was killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"exited with {code}"
    )
    return (
        f"rollout worker {worker.plan.name} (pid {worker.process.pid}) {cause} "
        f"with {len(worker.assigned)} trajectories in flight"
    )
