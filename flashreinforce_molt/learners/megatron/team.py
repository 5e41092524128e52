"""The Megatron learner seen from the run's own process: one object, N ranks behind it.

The run talks to rank 0 through a pipe, rank 0 to the others through a process group of its own that waits as long as
a batch takes to arrive. The policy model's parameters lie in shared memory, and rank 0 writes every update's weights
straight into them, so that evaluation, publication and checkpoints of the run work as with the one-process learner.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as torch_multiprocessing
from torch import Tensor
from transformers import PreTrainedConfig

from flashreinforce_molt.config import Config, SettingError
from flashreinforce_molt.learners.megatron.layout import MegatronLayout
from flashreinforce_molt.learners.torch_learner import NonFiniteUpdateError, UpdateResult
from flashreinforce_molt.models import Policy
from flashreinforce_molt.trajectory import TrajectoryBatch

RANK_SETUP = "FLASHREINFORCE_RANK_SETUP"
"""Environment variable: `module:function`, called in every rank before Megatron's groups are made."""
START_TIMEOUT_S = 600.0
_REFUSALS: dict[str, type[Exception]] = {"update": NonFiniteUpdateError, "load": ValueError}
"""Errors that every rank raises alike, with nothing changed, so that the ranks may go on; any other ends them."""


class LearnerError(RuntimeError):
    """A learner rank failed; the message says which and how."""


class MegatronTeam:
    """Starts the ranks on this machine, one for each device, and speaks for them. Close it, or use it in `with`."""

    def __init__(self, policy: Policy, config: Config, layout: MegatronLayout, ranks: int) -> None:
        layout.data_parallel(ranks)
        if config.engine.device == "cuda" and ranks > torch.cuda.device_count():
            raise SettingError(
                f"{ranks} learner ranks need as many GPUs, this machine has {torch.cuda.device_count()}"
            )
        self.updates_done = 0
        policy.model.share_memory()
        shared = {name: parameter.detach() for name, parameter in policy.model.named_parameters()}
        self._directory = tempfile.mkdtemp(prefix="flashreinforce-")
        context = torch_multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        work = _Work(ranks, f"file://{self._directory}/rendezvous", policy.model.config, config, layout)
        self._ranks = [
            context.Process(
                target=_serve,
                args=(rank, work, *((far_end, shared) if rank == 0 else (None, None))),
                name=f"learner rank {rank}",
                daemon=True,
            )
            for rank in range(ranks)
        ]
        for process in self._ranks:
            process.start()
        far_end.close()
        try:
            self._answer(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> MegatronTeam:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, batch: TrajectoryBatch) -> UpdateResult:
        """One optimizer step; afterwards the policy model holds the new weights.

        Raises NonFiniteUpdateError with nothing changed, and LearnerError when a rank died.
        """
        result = self._ask("update", batch)
        self.updates_done += 1
        return result

    def state_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the weights, under the names that `TorchLearner`'s checkpoints use."""
        return self._ask("state")

    def load_state(self, tensors: dict[str, Tensor], updates_done: int) -> None:
        """Go on from what `state_tensors` of any learner gave."""
        self._ask("load", (tensors, updates_done))
        self.updates_done = updates_done

    def close(self) -> None:
        """End every rank, by force where asking does not help."""
        # where one is dead the others may hang in a collective, and no orderly end is possible
        if all(process.is_alive() for process in self._ranks):
            with suppress(OSError):
                self._pipe.send(("close", None))
            self._join(5.0)
        for process in self._ranks:
            if process.is_alive():
                process.kill()
                process.join()
        self._pipe.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _ask(self, command: str, argument: Any = None) -> Any:
        try:
            self._pipe.send((command, argument))
        except OSError as error:
            raise LearnerError(self._obituary()) from error
        return self._answer(None)

    def _answer(self, timeout: float | None) -> Any:
        ready = wait([self._pipe, *(process.sentinel for process in self._ranks)], timeout)
        if self._pipe in ready:
            try:
                kind, value = self._pipe.recv()
            except (EOFError, OSError):  # a reset, where rank 0 left something unread
                kind, value = "died", None
            if kind == "done":
                return value
            if kind == "refused":
                raise value
            if kind == "failed":  # perhaps only because another rank is gone
                raise LearnerError("\n".join([*self._killed(), value]))
        raise LearnerError(self._obituary() if ready else f"no learner rank was ready after {timeout:.0f} s")

    def _obituary(self) -> str:
        """Who is dead: first the killed ranks, which took the others with them."""
        killed = self._killed()
        ended = [
            f"{process.name} ended with code {process.exitcode}"
            for process in self._ranks
            if process.exitcode is not None and process.exitcode >= 0
        ]
        return ", ".join([*killed, *ended]) or "the learner's rank 0 closed its connection"

    def _killed(self) -> list[str]:
        self._join(1.0)
        return [
            f"{process.name} (pid {process.pid}) was killed by {signal.Signals(-process.exitcode).name}"
            for process in self._ranks
            if process.exitcode is not None and process.exitcode < 0
        ]

    def _join(self, seconds: float) -> None:
        """Wait for the end of every rank, no longer than this for all of them together."""
        deadline = time.monotonic() + seconds
        for process in self._ranks:
            process.join(max(0.0, deadline - time.monotonic()))


@dataclass(frozen=True)
class _Work:
    """What every rank is told."""

    ranks: int
    rendezvous: str
    hf: PreTrainedConfig
    config: Config
    layout: MegatronLayout


def _serve(rank: int, work: _Work, pipe: Connection | None, shared: dict[str, Tensor] | None) -> None:
    """A rank's life: set up, then one command after the other until "close"."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's to handle
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron's condition for tensor parallel
    try:
        _Server(rank, work, pipe, shared).serve()
    except BaseException:
        report = f"learner rank {rank} failed:\n{traceback.format_exc()}"
        if pipe is not None:
            with suppress(OSError):  # the run may be gone too
                pipe.send(("failed", report))
        else:
            print(report, file=sys.stderr, flush=True)
        os._exit(1)  # the other ranks may hang in a collective; no orderly end is possible


class _Server:
    """One rank; only rank 0 has the pipe to the run and the policy model's parameters."""

    def __init__(
        self, rank: int, work: _Work, pipe: Connection | None, shared: dict[str, Tensor] | None
    ) -> None:
        config = work.config
        on_gpu = config.engine.device == "cuda"
        device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
        torch.set_num_threads(config.engine.threads)
        torch.use_deterministic_algorithms(config.engine.deterministic)
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=work.rendezvous,
            rank=rank,
            world_size=work.ranks,
        )
        self.pipe, self.shared = pipe, shared
        self.commands = dist.new_group(backend="gloo", timeout=timedelta(days=365))
        from flashreinforce_molt.learners.megatron.learner import MegatronLearner, initialize_parallel

        groups = initialize_parallel(work.layout)
        if setup := os.environ.get(RANK_SETUP):
            _imported(setup)()
        elif on_gpu:
            from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

            model_parallel_cuda_manual_seed(config.seed)
        self.learner = MegatronLearner(work.hf, config, work.layout, groups=groups, device=device)
        self._load_weights(device)

    def serve(self) -> None:
        self._reply("done", None)
        while True:
            command, argument = self._next()
            if command == "close":
                break
            try:
                value = getattr(self, f"_do_{command}")(argument)
            except _REFUSALS.get(command, ()) as error:
                self._reply("refused", error)
            else:
                self._reply("done", value)
        dist.destroy_process_group()

    def _do_update(self, batch: TrajectoryBatch) -> UpdateResult:
        result = self.learner.update(batch)
        for name, tensor in self.learner.export_weights():
            if self.shared is not None:
                self.shared[name].copy_(tensor)
        return result

    def _do_state(self, _: None) -> dict[str, Tensor]:
        return self.learner.optimizer_tensors()

    def _do_load(self, argument: tuple[dict[str, Tensor], int]) -> None:
        self.learner.load_optimizer(*argument)

    def _load_weights(self, device: torch.device) -> None:
        """The policy model's weights, from rank 0 to all."""
        dtype = getattr(torch, self.learner.config.model.dtype)
        received = {
            name: torch.empty(template.shape, dtype=dtype, device=device)
            for name, template in self.learner.weights.templates.items()
        }
        for name, tensor in received.items():
            if self.shared is not None:
                tensor.copy_(self.shared[name])
            dist.broadcast(tensor, src=0)
        self.learner.load_weights(received.__getitem__)

    def _next(self) -> tuple[str, Any]:
        message: list[Any] = [None]
        if self.pipe is not None:
            try:
                message[0] = self.pipe.recv()
            except EOFError:  # the run is gone
                message[0] = ("close", None)
        dist.broadcast_object_list(message, src=0, group=self.commands)
        return message[0]

    def _reply(self, kind: str, value: Any) -> None:
        if self.pipe is not None:
            self.pipe.send((kind, value))


def _imported(path: str) -> Callable[[], object]:
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)
