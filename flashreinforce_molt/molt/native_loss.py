"""The FlashREINFORCE loss of one microbatch of Molt, as its exact share of the loss of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from flashreinforce_molt.molt.batch_plan import BatchPlan, Row
from flashreinforce_molt.objective import (
    bernoulli_kl,
    failure_token_filter,
    group_rows,
    importance_ratio,
    sequence_gate,
    token_denominators,
    token_gate,
)
from flashreinforce_molt.objective.validate import validate_options, validate_values

RECORDED = (
    "drift_sum",
    "admitted_tokens",
    "retained_tokens",
    "filtered_tokens",
    "clamped_tokens",
    "max_ratio",
    "max_ratio_before_gate",
    "absolute_weight",
    "largest_weight",
)
"""What the loss notes of every row that has policy tokens."""


@dataclass(frozen=True)
class NativeOptions:
    """The `--flash.*` options that shape the loss."""

    delta: float
    gate: str
    negative_token_fraction: float
    aggregation: str
    constant_length: int | None
    importance_correction: bool
    ratio_gradient: str
    log_ratio_limit: float | None

    @classmethod
    def of(cls, args: Any) -> NativeOptions:
        """From the namespace that Molt hands to every worker."""
        options = cls(**{field.name: getattr(args.flash, field.name) for field in fields(cls)})
        validate_options(
            **{name: value for name, value in vars(options).items() if name != "importance_correction"}
        )
        return options

    @property
    def filters(self) -> bool:
        return self.negative_token_fraction < 1

    @property
    def effective_gate(self) -> str:
        """The gate is off without importance correction."""
        return self.gate if self.importance_correction else "none"


class NativePolicyLoss(nn.Module):
    """Takes the place of Molt's `PolicyLoss` in its `PolicyTrainer`.

    The learner sets `plan` for a batch, and `rows` and `entropies` for each microbatch. The sum of the losses of all
    microbatches of all ranks, each divided by `dp_size` as data parallelism does, is the loss of the batch (Eq. 11).
    """

    def __init__(self, options: NativeOptions, loss_agg_mode: str) -> None:
        super().__init__()
        self.options = options
        self.loss_agg_mode = loss_agg_mode
        """Molt reads it to count rows; the denominators here are those of the plan."""
        self.plan: BatchPlan | None = None
        self.rows: Sequence[int] = ()
        """Which rows of the plan the microbatch holds."""
        self.entropies: Tensor | None = None
        self.records: list[tuple[list[int], Tensor]] = []
        """(rows of the plan, [n, RECORDED]) of every microbatch since the plan was set."""

    def begin(self, plan: BatchPlan) -> None:
        """Start a batch."""
        self.plan, self.records = plan, []

    def forward(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        action_mask: Tensor | None = None,
        rollout_log_probs: Tensor | None = None,
        dp_size: int = 1,
        **_: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Molt's contract: loss, reported loss, clipped share, policy KL, rollout KL, rejected flag of each row.

        `old_log_probs` are this very forward (`force_on_policy`), and `advantages` are those of the plan.
        """
        assert self.plan is not None, "the learner sets the plan of a batch"
        assert action_mask is not None
        if rollout_log_probs is None:
            raise ValueError(
                "the rollouts carry no behaviour log-probs; switch --algo.advantage.is_correction_level on, "
                "so that Molt records them"
            )
        members = [self.plan.rows[index] for index in self.rows]
        full = [place for place, row in enumerate(members) if row.tokens]
        zero = log_probs.new_zeros(())
        if not full:  # padding only
            return (log_probs * 0.0).sum(), zero, zero, zero, zero, log_probs.new_zeros(len(members))
        select = torch.tensor(full, device=log_probs.device)
        loss, record = self._loss(
            log_probs[select],
            rollout_log_probs[select],
            action_mask[select].bool(),
            None if self.entropies is None else self.entropies[select],
            [members[place] for place in full],
            [self.rows[place] for place in full],
        )
        self.records.append(([self.rows[place] for place in full], record))
        rejected = log_probs.new_zeros(len(members))
        rejected[select] = (record[:, RECORDED.index("admitted_tokens")] == 0).to(rejected.dtype)
        mask = action_mask.bool()
        mismatch = torch.where(mask, rollout_log_probs - log_probs.detach(), 0).sum() / mask.sum()
        reported = loss.detach() * self.plan.totals.policy_tokens / mask.sum()
        return loss * dp_size, reported, zero, zero, mismatch, rejected

    def _loss(
        self,
        log_probs: Tensor,
        behavior_log_probs: Tensor,
        mask: Tensor,
        entropies: Tensor | None,
        members: Sequence[Row],
        indices: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """[n, T] rows with policy tokens -> share of the batch's loss, [n, RECORDED] notes."""
        options, plan = self.options, self.plan
        assert plan is not None
        advantages = log_probs.new_tensor([row.advantage for row in members], dtype=torch.float32)
        single = group_rows(None, mask)
        try:
            validate_values(
                log_probs.detach(), behavior_log_probs, advantages, mask, single, entropies=entropies
            )
        except ValueError as error:
            raise ValueError(
                f"trajectories {', '.join(row.trajectory for row in members)}: {error}"
            ) from None

        policy = torch.where(mask, log_probs, 0).float()
        behavior = torch.where(mask, behavior_log_probs, 0).float()
        tokens = torch.tensor([plan.policy_tokens[row.trajectory] for row in members], device=mask.device)
        drift = bernoulli_kl(policy.detach(), behavior)
        drift_sum = torch.where(mask, drift, 0).sum(dim=1)

        admitted = mask
        if options.effective_gate == "sequence":
            # A trajectory of one row is decided here; of a scattered one this is only a part.
            decided = sequence_gate(drift_sum / tokens, options.delta).tolist()
            gate = [
                plan.admitted.get(row.trajectory, here) for row, here in zip(members, decided, strict=True)
            ]
            admitted = mask & torch.tensor(gate, device=mask.device)[:, None]
        elif options.effective_gate == "token":
            admitted = mask & token_gate(drift, options.delta)
        retained = admitted & self._filtered(mask, entropies, members, indices)

        reference = behavior if options.importance_correction else policy.detach()
        limit = options.log_ratio_limit if options.importance_correction else None
        log_ratio = torch.where(retained, policy - reference, 0)
        ratio = importance_ratio(log_ratio, limit)
        surrogate = ratio if options.ratio_gradient == "through" else ratio.detach() * policy

        denominators = token_denominators(tokens, plan.totals, options.aggregation, options.constant_length)
        coefficients = (advantages / denominators)[:, None]
        terms = torch.where(retained, coefficients * surrogate, 0)
        weights = torch.where(retained, coefficients * ratio.detach(), 0).abs()
        _refuse_overflow(terms.detach(), weights, log_ratio.detach(), limit, members)

        before_gate = torch.where(mask, policy.detach() - behavior, -torch.inf).amax(dim=1).exp()
        beyond = log_ratio.detach().abs() > (torch.inf if limit is None else limit)
        record = torch.stack(
            [
                drift_sum,
                admitted.sum(dim=1),
                retained.sum(dim=1),
                (admitted & ~retained).sum(dim=1),
                (retained & beyond).sum(dim=1),
                torch.where(retained, ratio.detach(), 0).amax(dim=1),
                before_gate,
                weights.sum(dim=1),
                weights.amax(dim=1),
            ],
            dim=1,
        )
        return -terms.sum(), record

    def _filtered(
        self, mask: Tensor, entropies: Tensor | None, members: Sequence[Row], indices: Sequence[int]
    ) -> Tensor:
        """[n, T] bool: the tokens that the failure-token filter keeps (Appendix C)."""
        if not self.options.filters:
            return mask
        assert entropies is not None
        assert self.plan is not None
        failures = torch.tensor([bool(row.failed) for row in members], device=mask.device)
        fraction = self.options.negative_token_fraction
        kept = failure_token_filter(entropies, failures, mask, group_rows(None, mask), fraction)
        for place, index in enumerate(indices):
            if index in self.plan.kept:
                kept[place, mask[place]] = self.plan.kept[index].to(mask.device)
        return kept


def _refuse_overflow(
    terms: Tensor, weights: Tensor, log_ratio: Tensor, limit: float | None, members: Sequence[Row]
) -> None:
    overflow = ~(terms.isfinite() & weights.isfinite())
    if overflow.any():
        row, token = overflow.nonzero()[0].tolist()
        raise FloatingPointError(
            f"trajectory {members[row].trajectory}, token {token}: log-ratio {log_ratio[row, token].item():.6g} of a "
            f"retained token overflows (log_ratio_limit={limit}); --flash.log_ratio_limit 30 clamps it"
        )
