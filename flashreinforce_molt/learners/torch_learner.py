"""The learner on plain torch: correct, trust, optimize, in one process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flashreinforce_molt.config import Config
from flashreinforce_molt.learners.schedule import learning_rate
from flashreinforce_molt.learners.scoring import score
from flashreinforce_molt.objective import flashreinforce_loss, merge_stats
from flashreinforce_molt.trajectory import TrajectoryBatch


class NonFiniteUpdateError(FloatingPointError):
    """Loss or gradient of a batch is NaN or infinite; no step was taken with it."""


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

        Raises NonFiniteUpdateError, with weights and optimizer untouched, when its gradient is not finite.
        """
        self.model.train()
        loss, entropy_sum, shards = 0.0, 0.0, []
        totals = batch.totals()
        for shard in batch.split(self.config.train.micro_batch_size):
            shard_loss, stats, entropies = self._backward(shard, totals)
            loss += shard_loss
            entropy_sum += entropies
            shards.append(stats)
        lr = learning_rate(self.config.optim, self.updates_done, self.config.train.updates)
        grad_norm = self._step(loss, lr)
        self.updates_done += 1
        return UpdateResult(loss, entropy_sum / totals.policy_tokens, grad_norm, lr, merge_stats(shards))

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
        config, objective = self.config, self.config.objective
        rows = shard.padded().to(self.model.device)
        log_probs, entropies = score(
            self.model,
            rows,
            temperature=config.rollout.temperature,
            chunk_tokens=config.train.logprob_chunk_tokens,
            with_entropy=True,
        )
        assert entropies is not None
        loss, stats = flashreinforce_loss(
            log_probs,
            **rows.objective_inputs(),
            entropies=entropies,
            delta=objective.delta,
            negative_token_fraction=objective.negative_token_fraction,
            ratio_gradient=objective.ratio_gradient,
            log_ratio_limit=objective.log_ratio_limit,
            aggregation=objective.aggregation,
            constant_length=objective.constant_length,
            gate=objective.gate,
            importance_correction=objective.importance_correction,
            totals=totals,
        )
        loss.backward()
        return loss.item(), stats, entropies.sum().item()

    def _step(self, loss: float, lr: float) -> float:
        grads = [
            m.grad if m is p else _promoted(p.grad)
            for m, p in zip(self.masters, self.parameters, strict=True)
        ]
        for master, grad in zip(self.masters, grads, strict=True):
            master.grad = grad
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.config.optim.max_grad_norm).item()
        try:
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise NonFiniteUpdateError(
                    f"update {self.updates_done + 1}: loss {loss}, gradient norm {norm}; no step was taken"
                )
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
            with torch.no_grad():
                for parameter, master in zip(self.parameters, self.masters, strict=True):
                    if parameter is not master:
                        parameter.copy_(master)
        finally:
            for tensor in (*self.parameters, *self.masters):
                tensor.grad = None
        return norm


def _promoted(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.float()
