"""The loss functions for Megatron's schedules, without Megatron: free logits, real gloo groups, its published scaling."""

from __future__ import annotations

import math
import subprocess
import sys
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from cases import OBJECTIVES, VOCABULARY, relative_error, special_batch
from gloo_ranks import run_ranks

from flashreinforce_molt.learners.megatron import (
    LossSettings,
    ParallelGroups,
    megatron_loss_func,
    megatron_scoring_func,
    megatron_weighted_func,
    merge_reports,
    weigh_batch,
)
from flashreinforce_molt.learners.megatron.context import context_slots, gather_slots
from flashreinforce_molt.learners.megatron.microbatches import data_parallel_shards, row_shards
from flashreinforce_molt.logprobs import chosen_log_probs_and_entropy
from flashreinforce_molt.objective import bernoulli_kl, flashreinforce_loss, sequence_gate
from flashreinforce_molt.trajectory import TrajectoryBatch

SLOTS = 16


def free_logits(batch):
    """Logits [rows, SLOTS, V] as leaves: every gradient of the loss is visible."""
    rows = len(batch.padded().rewards)
    return torch.randn(
        rows, SLOTS, VOCABULARY, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )


def score_rows(logits, rows):
    width = rows.targets.shape[1]
    return chosen_log_probs_and_entropy(logits[:, :width], rows.targets, with_entropy=True)


@pytest.fixture(scope="module")
def batch():
    probe = torch.randn(
        11, SLOTS, VOCABULARY, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    return special_batch(lambda rows: score_rows(probe, rows)[0])


def one_process(batch, objective):
    logits = free_logits(batch).requires_grad_()
    rows = batch.padded()
    log_probs, entropies = score_rows(logits, rows)
    loss, stats = flashreinforce_loss(log_probs, **rows.objective_inputs(), entropies=entropies, **objective)
    loss.backward()
    return loss.item(), stats, logits.grad


def plain_groups(tp, cp, dp):
    """Groups of a world laid out as Megatron does: tp fastest, then cp, then dp."""
    world = torch.arange(tp * cp * dp).view(dp, cp, tp)
    mine = (world == dist.get_rank()).nonzero()[0].tolist()
    found = {}
    for axis, name in enumerate(("dp", "cp", "tp")):
        for ranks in world.movedim(axis, -1).reshape(-1, world.shape[axis]).tolist():
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                found[name] = group
    for rank in range(world.numel()):
        group = dist.new_group([rank])
        if rank == dist.get_rank():
            found["pp"] = group
    assert mine == [found["dp"].rank(), found["cp"].rank(), found["tp"].rank()]
    return ParallelGroups(**found)


class Rank:
    """One rank's part of a step over free logits, with the schedule's and the data-parallel wrapper's scaling."""

    def __init__(self, batch, sizes, objective, per_token):
        self.groups = plain_groups(*sizes)
        self.settings = LossSettings(
            groups=self.groups, calculate_per_token_loss=per_token, chunk_tokens=5, objective=objective
        )
        self.batch = batch
        self.logits = free_logits(batch).requires_grad_()
        ids = batch.padded().trajectory_ids.tolist()
        self.first_row = {trajectory: ids.index(trajectory) for trajectory in ids}

    def local(self, places):
        cp, tp = self.groups.cp, self.groups.tp
        slots = context_slots(SLOTS, cp.size(), cp.rank())
        return self.logits[places][:, slots].chunk(tp.size(), -1)[tp.rank()]

    def places(self, rows):
        """Where the rows of a microbatch stand in the batch (a trajectory's rows follow each other)."""
        seen, places = {}, []
        for trajectory in rows.trajectory_ids.tolist():
            places.append(self.first_row[trajectory] + seen.get(trajectory, 0))
            seen[trajectory] = seen.get(trajectory, 0) + 1
        return places

    def backward(self, functions, places):
        """What `forward_backward_func` and `finalize_model_grads` do with the returns."""
        reports, counts = [], 0
        for function, at in zip(functions, places, strict=True):
            outputs = function(self.local(at))
            if self.settings.calculate_per_token_loss:
                value, count, report = outputs
                counts += int(count)
            else:
                value, report = outputs
                value = value * self.groups.cp.size() / len(functions)
            value.backward()
            reports.append(report)
        scale = torch.tensor([float(counts)])
        dist.all_reduce(self.logits.grad)  # tp shards are disjoint, cp slots too; dp ranks hold other rows
        if self.settings.calculate_per_token_loss:
            for group in (self.groups.cp, self.groups.dp):
                dist.all_reduce(scale, group=group)
            self.logits.grad /= scale.item()
        else:
            self.logits.grad /= self.groups.dp.size() * self.groups.cp.size()
        return reports


def one_pass(batch, sizes, objective, per_token, micro_batch_size):
    rank = Rank(batch, sizes, objective, per_token)
    shards = data_parallel_shards(batch, rank.groups.dp.size(), micro_batch_size)[rank.groups.dp.rank()]
    rows = [shard and shard.padded() for shard in shards]
    functions = [
        partial(
            megatron_loss_func,
            rows=part,
            totals=batch.totals(),
            num_microbatches=len(rows),
            settings=rank.settings,
        )
        for part in rows
    ]
    reports = rank.backward(functions, [rank.places(part) if part else [0] for part in rows])
    return rank.logits.grad, merge_reports(reports, rank.groups)


def two_passes(batch, sizes, objective, per_token, rows_per_microbatch):
    """Rows cut without any regard to trajectories, also across data-parallel ranks."""
    rank = Rank(batch, sizes, objective, per_token)
    mine = row_shards(batch.padded(), rows_per_microbatch, rank.groups.dp.size())[rank.groups.dp.rank()]
    before = rank.groups.dp.rank() * len(mine)
    places = [
        [(before + number) * rows_per_microbatch + n for n in range(len(part.rewards))] if part else [0]
        for number, part in enumerate(mine)
    ]
    with torch.no_grad():
        scores = [
            megatron_scoring_func(rank.local(at), rows=part, settings=rank.settings)[1]
            for part, at in zip(mine, places, strict=True)
        ]
    weights, report = weigh_batch(mine, scores, batch.totals(), rank.settings)
    functions = [
        partial(
            megatron_weighted_func,
            rows=part,
            weights=weight,
            num_microbatches=len(mine),
            settings=rank.settings,
        )
        for part, weight in zip(mine, weights, strict=True)
    ]
    rank.backward(functions, places)
    return rank.logits.grad, report


LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (1, 1, 3), (2, 2, 1), (1, 2, 2)]


@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: "tp{}cp{}dp{}".format(*sizes))
def test_any_layout_gives_the_gradient_of_one_process(batch, sizes):
    assert_all_equal_one_process(batch, run_ranks(math.prod(sizes), every_split, batch, sizes))


def every_split(batch, sizes):
    return {
        (name, per_token, micro): one_pass(batch, sizes, objective, per_token, micro)
        for (name, objective), per_token, micro in product(OBJECTIVES.items(), (False, True), (None, 1, 3))
    }


def assert_all_equal_one_process(batch, outcomes_of_ranks):
    for name, objective in OBJECTIVES.items():
        loss, stats, gradient = one_process(batch, objective)
        for outcomes in outcomes_of_ranks:
            found = [outcome for case, outcome in outcomes.items() if case[0] == name]
            assert found
            for measured, report in found:
                assert relative_error(measured, gradient) < 1e-12
                assert float(report.loss) == pytest.approx(loss, rel=1e-12)
                assert_same_statistics(report.stats, stats)


def assert_same_statistics(measured, expected):
    order = [measured["trajectory_ids"].tolist().index(i) for i in expected["trajectory_ids"].tolist()]
    for name, value in expected.items():
        found = measured[name][order] if value.dim() else measured[name]
        torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=str)
def test_rows_split_without_regard_to_trajectories_need_two_passes_and_lose_nothing(batch, sizes):
    assert_all_equal_one_process(batch, run_ranks(math.prod(sizes), every_row_split, batch, sizes))


def every_row_split(batch, sizes):
    return {
        (name, per_token, count): two_passes(batch, sizes, objective, per_token, count)
        for (name, objective), per_token, count in product(OBJECTIVES.items(), (False, True), (1, 2, 4))
    }


def test_more_ranks_than_trajectories_leave_fillers_that_add_nothing(batch):
    few = TrajectoryBatch(batch.trajectories[:3])
    loss, _, gradient = one_process(few, OBJECTIVES["filter"])
    for measured, report in run_ranks(4, one_pass, few, (1, 1, 4), OBJECTIVES["filter"], True, 1):
        assert relative_error(measured, gradient) < 1e-12
        assert report.loss == pytest.approx(loss, rel=1e-12)


def test_the_case_is_hard_a_context_parallel_rank_alone_would_decide_otherwise(batch):
    """Per-rank means fall on the other side of delta than the mean of the trajectory, in both directions."""
    logits = free_logits(batch)
    rows = batch.padded()
    log_probs, _ = score_rows(logits, rows)
    drift = bernoulli_kl(log_probs, rows.behavior_log_probs.double())
    delta = OBJECTIVES["method"]["delta"]
    for name, decision in (("straddles the cut, admitted", True), ("straddles the cut, rejected", False)):
        row = rows.trajectory_ids.tolist().index(next(t.trajectory_id for t in batch if t.prompt_id == name))
        whole = drift[row][rows.action_mask[row]].mean()
        parts = []
        for rank in range(2):
            slots = context_slots(SLOTS, 2, rank)
            parts.append(drift[row, slots][rows.action_mask[row, slots]].mean())
        assert bool(sequence_gate(whole, delta)) is decision
        assert any(bool(sequence_gate(part, delta)) is not decision for part in parts)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_context_slots_partition_a_row_in_pairs_of_an_early_and_a_late_chunk(ranks):
    slots = [context_slots(16, ranks, rank) for rank in range(ranks)]
    assert sorted(torch.cat(slots).tolist()) == list(range(16))
    if ranks == 2:
        assert [part.tolist() for part in slots] == [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]]


def test_slots_that_cannot_be_cut_are_refused():
    with pytest.raises(ValueError, match="10 slots cannot be cut into 4 equal chunks"):
        context_slots(10, 2, 0)


def test_gathered_slots_are_in_token_order_and_only_ones_own_carry_gradient():
    for rank, (row, gradient) in enumerate(run_ranks(2, gather_case)):
        assert row.tolist() == [list(range(8))]
        assert gradient.nonzero()[:, 1].tolist() == context_slots(8, 2, rank).tolist()


def gather_case():
    group = dist.group.WORLD
    row = torch.arange(8.0)[None].requires_grad_()
    whole = gather_slots(row[:, context_slots(8, 2, group.rank())], group)
    (gradient,) = torch.autograd.grad((whole * whole).sum() + whole.sum(), row)
    return whole.detach(), gradient


def test_the_report_survives_the_schedule_scaling_the_loss_in_place(batch):
    for value, reported in run_ranks(1, scaled_in_place, batch):
        assert value != pytest.approx(reported)
        assert reported == pytest.approx(one_process(batch, OBJECTIVES["method"])[0])


def scaled_in_place(batch):
    rank = Rank(batch, (1, 1, 1), OBJECTIVES["method"], False)
    rows = batch.padded()
    value, report = megatron_loss_func(
        rank.local(range(len(rows.rewards))),
        rows=rows,
        totals=batch.totals(),
        num_microbatches=1,
        settings=rank.settings,
    )
    value *= 17
    return value.item(), report["loss"].item()


def test_the_functions_load_no_megatron_and_the_package_alone_no_torch():
    script = (
        "import sys, flashreinforce_molt.learners.megatron as m; assert 'torch' not in sys.modules;"
        "m.megatron_loss_func, m.weigh_batch, m.merge_reports, m.vocab_parallel_log_probs_and_entropy, m.ParallelGroups;"
        "print([name for name in sys.modules if name.startswith('megatron')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_public_name_that_does_not_exist_is_an_attribute_error():
    import flashreinforce_molt.learners.megatron as package

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing
