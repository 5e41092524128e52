"""The learner on plain torch: correct, trust, optimize, in one process."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flashreinforce_molt.config import Config
from flashreinforce_molt.learners.schedule import learning_rate
from flashreinforce_molt.learners.scoring import score
from flashreinforce_molt.objective import flashreinforce_loss, merge_stats
from flashreinforce_molt.objective.validate import name_place
from flashreinforce_molt.trajectory import PaddedRows, TrajectoryBatch


class NonFiniteUpdateError(FloatingPointError):
    """A log-prob, the loss or the gradient of a batch is NaN or infinite; no step was taken with it.

    The message names loss, gradient norm and the first tensor that is not finite.
    """


@dataclass(frozen=True)
class UpdateResult:
    """What one optimizer step did, over the whole batch."""

    loss: float
    entropy_mean: float
    grad_norm: float
    lr: float
    stats: dict[str, Any]
    """Statistics of `flashreinforce_loss`."""


class TorchLearner:
    """Takes exactly one AdamW step for each batch, however many forward passes the batch needs."""

    def __init__(self, model: PreTrainedModel, config: Config) -> None:
        self.model, self.config = model, config
        self.updates_done = 0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # Moments and the weights they act on are float32: bfloat16 cannot hold a step of the published size.
        self.masters = [p if p.dtype == torch.float32 else p.detach().float() for p in self.parameters]
        optim = config.optim
        groups = [
            {"params": [m for m in self.masters if m.ndim >= 2], "weight_decay": optim.weight_decay},
            {"params": [m for m in self.masters if m.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            eps=optim.eps,
        )
        if config.model.gradient_checkpointing:
            # renamed within the supported range of transformers
            enable = (
                getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            )
            enable()

    def update(self, batch: TrajectoryBatch) -> UpdateResult:
        """Correct, trust and optimize with a fresh batch.

        Raises NonFiniteUpdateError, with weights and optimizer untouched, when a log-prob, the loss or the gradient
        is not finite.
        """
        self.model.train()
        loss, entropy_sum, shards = 0.0, 0.0, []
        totals = batch.totals()
        lr = learning_rate(self.config.optim, self.updates_done, self.config.train.updates)
        try:
            for shard in batch.split(self.config.train.micro_batch_size):
                shard_loss, stats, entropies = self._backward(shard, totals)
                loss += shard_loss
                entropy_sum += entropies
                shards.append(stats)
            grad_norm = self._step(loss, lr)
        finally:
            for tensor in (*self.parameters, *self.masters):
                tensor.grad = None
        self.updates_done += 1
        return UpdateResult(loss, entropy_sum / totals.policy_tokens, grad_norm, lr, merge_stats(shards))

    @torch.no_grad()
    def log_probs(self, batch: TrajectoryBatch, *, temperature: float | None = None) -> dict[int, Tensor]:
        """log pi [P] of each trajectory's policy tokens by its id, on the CPU, exactly as `update` computes them.

        At `rollout.temperature`, or at another one.
        """
        self.model.train()
        found: dict[int, Tensor] = {}
        for shard in batch.split(self.config.train.micro_batch_size):
            rows = shard.padded().to(self.model.device)
            values, _ = self._score(rows, temperature=temperature, with_entropy=False)
            sampled = values[rows.action_mask].cpu().split([trajectory.policy_tokens for trajectory in shard])
            found |= {trajectory.trajectory_id: part for trajectory, part in zip(shard, sampled, strict=True)}
        return found

    def state_tensors(self) -> dict[str, Tensor]:
        """Moments, step counts and float32 masters, numbered like the model's parameters."""
        tensors = {}
        for i, (parameter, master) in enumerate(zip(self.parameters, self.masters, strict=True)):
            if parameter is not master:
                tensors[f"master.{i}"] = master.detach().cpu()
            for name, value in self.optimizer.state.get(master, {}).items():
                tensors[f"{name}.{i}"] = value.detach().cpu().contiguous()
        return tensors

    def load_state(self, tensors: dict[str, Tensor], updates_done: int) -> None:
        """Go on from what `state_tensors` gave."""
        for i, (parameter, master) in enumerate(zip(self.parameters, self.masters, strict=True)):
            if parameter is not master:
                with torch.no_grad():
                    master.copy_(tensors[f"master.{i}"])
            if f"exp_avg.{i}" in tensors:
                self.optimizer.state[master] = {
                    "step": tensors[f"step.{i}"],
                    "exp_avg": tensors[f"exp_avg.{i}"].to(master.device),
                    "exp_avg_sq": tensors[f"exp_avg_sq.{i}"].to(master.device),
                }
        self.updates_done = updates_done

    def close(self) -> None:
        """Nothing was started."""

    def _backward(self, shard: TrajectoryBatch, totals: Any) -> tuple[float, dict[str, Any], float]:
        rows = shard.padded().to(self.model.device)
        log_probs, entropies = self._score(rows, with_entropy=True)
        assert entropies is not None
        self._refuse_non_finite(log_probs, rows)
        try:
            loss, stats = flashreinforce_loss(
                log_probs,
                **rows.objective_inputs(),
                entropies=entropies,
                **asdict(self.config.objective),
                totals=totals,
            )
        except FloatingPointError as overflow:
            raise self._non_finite("overflows", "not computed", str(overflow)) from overflow
        loss.backward()
        return loss.item(), stats, entropies.sum().item()

    def _score(
        self, rows: PaddedRows, *, temperature: float | None = None, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        return score(
            self.model,
            rows,
            temperature=temperature or self.config.rollout.temperature,
            chunk_tokens=self.config.train.logprob_chunk_tokens,
            with_entropy=with_entropy,
        )

    def _refuse_non_finite(self, log_probs: Tensor, rows: PaddedRows) -> None:
        wrong = rows.action_mask & ~log_probs.detach().isfinite()
        if wrong.any():
            place = wrong.nonzero()[0].tolist()
            where, value = name_place(place, rows.trajectory_ids), log_probs[tuple(place)].item()
            raise self._non_finite("not computed", "not computed", f"log_probs[{where}] is {value}")

    def _non_finite(self, loss: object, norm: object, first: str) -> NonFiniteUpdateError:
        return NonFiniteUpdateError(
            f"update {self.updates_done + 1}: loss {loss}, gradient norm {norm}; {first}; no step was taken"
        )

    def _step(self, loss: float, lr: float) -> float:
        grads = [
            m.grad if m is p else _promoted(p.grad)
            for m, p in zip(self.masters, self.parameters, strict=True)
        ]
        for master, grad in zip(self.masters, grads, strict=True):
            master.grad = grad
        # The two halves of clip_grad_norm_: scaling by a norm of infinity would hide which gradient it came from.
        total = torch.nn.utils.get_total_norm([grad for grad in grads if grad is not None])
        norm = total.item()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self._non_finite(loss, norm, self._first_gradient())
        torch.nn.utils.clip_grads_with_norm_(self.masters, self.config.optim.max_grad_norm, total)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                if parameter is not master:
                    parameter.copy_(master)
        return norm

    def _first_gradient(self) -> str:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                worst = parameter.grad[~parameter.grad.isfinite()][0].item()
                return f"the gradient of {name} holds {worst}"
        return "each gradient is finite, their norm or the loss is not"


def _promoted(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.float()
