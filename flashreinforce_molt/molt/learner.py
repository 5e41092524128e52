"""Our update inside Molt's `PolicyTrainer`: its forward, backward, FSDP and optimizer, our loss.

Assumptions about Molt 0.2.1, checked when the module loads or when a batch arrives:
* `PolicyTrainer` takes one optimizer step per `policy_train` under `force_on_policy` and never rescales the loss;
* `replay_buffer.items` are single rows, and a microbatch joins lists such as `index` in its order of rows;
* data parallelism averages gradients, so that a loss is multiplied by `strategy.dp_size`;
* `actor(...)` returns the full logits, whose position t predicts token t + 1, beside the log-probs.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import distributed

from flashreinforce_molt.molt.batch_plan import BatchPlan, Row, Scan
from flashreinforce_molt.molt.entropy import entropies_at
from flashreinforce_molt.molt.native_checks import refuse_unproven
from flashreinforce_molt.molt.native_loss import RECORDED, NativeOptions, NativePolicyLoss
from flashreinforce_molt.molt.native_metrics import update_metrics
from flashreinforce_molt.molt.options import LOSS_MODE
from flashreinforce_molt.molt.registration import expect_parameters
from flashreinforce_molt.objective import bernoulli_kl

SEGMENT_KEY = "flash_segment"
"""Entry of an experience's info: the place of a row in its trajectory, as text, which Molt does not log."""


def extend(policy_actor: ModuleType) -> None:
    """Wrap `PolicyTrainer` of `molt.trainer.workers.policy_actor`; nothing changes for other loss modes."""
    trainer = policy_actor.PolicyTrainer
    expect_parameters(trainer.__init__, "self", "strategy", "actor")
    expect_parameters(trainer.policy_train, "self", "kl_ctl")
    expect_parameters(trainer.training_step, "self", "experience", "kl_ctl", "batch_num_tokens")
    init, policy_train, training_step = trainer.__init__, trainer.policy_train, trainer.training_step

    @functools.wraps(init)
    def build(self: Any, strategy: Any, *args: Any, **kwargs: Any) -> None:
        init(self, strategy, *args, **kwargs)
        native = strategy.args.actor.loss_mode == LOSS_MODE
        self.flash_update = NativeUpdate(self) if native else None

    @functools.wraps(policy_train)
    def train(self: Any, kl_ctl: float) -> dict[str, Any]:
        if self.flash_update is None:
            return policy_train(self, kl_ctl)
        self.flash_update.begin()
        status = policy_train(self, kl_ctl)
        return {**status, **self.flash_update.metrics()}

    @functools.wraps(training_step)
    def step(self: Any, experience: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if self.flash_update is None:
            return training_step(self, experience, *args, **kwargs)
        with self.flash_update.microbatch(experience):
            return training_step(self, experience, *args, **kwargs)

    trainer.__init__, trainer.policy_train, trainer.training_step = build, train, step


class NativeUpdate:
    """Plans a batch, hands each microbatch to the loss, reports the batch."""

    def __init__(self, trainer: Any) -> None:
        refuse_unproven(trainer.args)
        self.trainer = trainer
        self.options = NativeOptions.of(trainer.args)
        self.loss = NativePolicyLoss(self.options, trainer.actor_loss_fn.loss_agg_mode)
        trainer.actor_loss_fn = self.loss
        self._open = False
        """Whether the actor's forward belongs to a microbatch of ours."""
        if self.options.filters:
            trainer.actor.register_forward_hook(self._note_entropies, with_kwargs=True)

    def begin(self) -> None:
        """Count the batch over all ranks, and decide what belongs to trajectories of several rows."""
        items = self.trainer.replay_buffer.items
        for place, item in enumerate(items):
            item.index = [place]
        rows = [_row_of(item, self.options.filters) for item in items]
        ranks, rank = self._gather(rows)
        plan = BatchPlan.of_batch(ranks, rank)
        self.loss.begin(plan)
        if plan.scattered and (self.options.effective_gate == "sequence" or self.options.filters):
            scans, _ = self._gather(self._scan(items))
            plan = plan.decided(
                ranks, scans, rank, delta=self.options.delta, fraction=self.options.negative_token_fraction
            )
            self.loss.begin(plan)

    @contextmanager
    def microbatch(self, experience: Any) -> Iterator[None]:
        """While entered, forward and loss belong to the rows of `experience`."""
        self.loss.rows, self.loss.entropies, self._open = experience.index, None, True
        try:
            yield
        finally:
            self.loss.rows, self.loss.entropies, self._open = (), None, False

    def metrics(self) -> dict[str, float]:
        """Metrics of the batch, the same on every rank."""
        plan = self.loss.plan
        assert plan is not None
        mine = [
            (plan.rows[index].trajectory, dict(zip(RECORDED, notes, strict=True)))
            for indices, record in self.loss.records
            for index, notes in zip(indices, record.tolist(), strict=True)
        ]
        ranks, _ = self._gather(mine)
        return update_metrics(plan, [row for rows in ranks for row in rows], self.options.effective_gate)

    @torch.no_grad()
    def _scan(self, items: Sequence[Any]) -> list[Scan]:
        """A pass without gradient, in the microbatches of the training pass."""
        join = importlib.import_module("molt.trainer.algorithm.experience").make_experience_batch
        size, scans = self.trainer.replay_buffer.sample_batch_size, []
        self.trainer.actor.train()
        for start in range(0, len(items), size):
            batch = join(items[start : start + size])
            batch.to_device(torch.cuda.current_device())
            with self.microbatch(batch):
                output = self.trainer.actor(
                    batch.sequences,
                    batch.action_mask,
                    attention_mask=batch.attention_mask,
                    routed_experts=batch.routed_experts,
                )
                entropies = self.loss.entropies
            mask = batch.action_mask.bool()
            policy = torch.where(mask, output["action_log_probs"], 0).float()
            behavior = torch.where(mask, batch.rollout_log_probs, 0).float()
            drift = torch.where(mask, bernoulli_kl(policy, behavior), 0).sum(dim=1).tolist()
            for place, drift_sum in enumerate(drift):
                of_tokens = () if entropies is None else tuple(entropies[place][mask[place]].tolist())
                scans.append(Scan(drift_sum, of_tokens))
        return scans

    def _note_entropies(self, actor: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Forward hook of the actor: entropies of the policy tokens of failed trajectories, nothing else."""
        if not self._open:
            return
        plan = self.loss.plan
        assert plan is not None
        mask = args[1].bool()
        failed = [bool(plan.rows[index].failed) for index in self.loss.rows]
        positions = mask & torch.tensor(failed, device=mask.device)[:, None]
        logits = output["logits"]
        if type(logits) is not torch.Tensor or logits.shape[:2] != args[0].shape:
            raise ValueError(
                f"the actor's logits are {type(logits).__name__} of another layout; no filter on them"
            )
        self.loss.entropies = entropies_at(
            logits[:, :-1][:, -mask.shape[1] :], positions, temperature=actor.temperature
        )

    def _gather(self, mine: list[Any]) -> tuple[list[list[Any]], int]:
        """The lists of every data-parallel rank, and which of them is `mine`."""
        strategy = self.trainer.strategy
        group = strategy._get_dp_group(include_cp=False)
        if not distributed.is_initialized() or strategy.dp_size == 1:
            return [mine], 0
        everyone: list[Any] = [None] * distributed.get_world_size(group=group)
        distributed.all_gather_object(everyone, mine, group=group)
        return everyone, distributed.get_rank(group=group)


def _row_of(item: Any, needs_label: bool) -> Row:
    """What the plan needs of one buffered row."""
    if item.action_log_probs is not None:
        raise ValueError("the batch carries recomputed old log-probs; our loss only knows the recorded ones")
    tokens = int(item.action_mask.sum())
    if not item.rollout_ids:
        raise ValueError("a row of the batch carries no rollout id, so its trajectory is unknown")
    trajectory = item.rollout_ids[0]
    failed = item.info.get("failed")
    if needs_label and failed is None:
        raise ValueError(
            f"trajectory {trajectory}: no failure label. --flash.negative_token_fraction < 1 needs an explicit "
            '`failed` in the info of the last step, for example Result(..., info={"failed": reward == 0})'
        )
    advantage = float(item.advantages[item.action_mask.bool()][0]) if tokens else 0.0
    segment = int(item.info.get(SEGMENT_KEY, 0))
    return Row(trajectory, tokens, advantage, None if failed is None else bool(failed), segment)
