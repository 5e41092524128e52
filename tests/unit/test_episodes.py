"""Episodes: turns, budgets, and what happens when an environment misbehaves."""

import asyncio

import numpy as np
import pytest
from tiny_engine import recorded_and_forward, tiny_policy
from toy_suite import ToySuite

from flashreinforce_molt.rollout.episodes import Dropped, EpisodeRunner, Limits
from flashreinforce_molt.rollout.generator import SlotGenerator
from flashreinforce_molt.rollout.sampling import Sampling
from flashreinforce_molt.trajectory import Trajectory

POLICY = tiny_policy()


def play(
    suite: ToySuite,
    count: int = 3,
    *,
    slots: int = 2,
    stop: int = 2,
    lockstep: bool = False,
    **limits: object,
) -> list[Trajectory | Dropped]:
    """Play tasks 0..count-1 to their end, in order of their end."""
    wanted = {"max_new_tokens": 12, "max_context_tokens": 48, "max_turns": 1, "step_timeout_s": 5.0, **limits}
    generator = SlotGenerator(
        POLICY.model,
        slots=slots,
        max_context=48,
        stop_tokens=frozenset({stop}),
        sampling=Sampling(),
    )

    async def serve() -> list[Trajectory | Dropped]:
        runner = EpisodeRunner(
            generator, suite, POLICY.tokenizer, Limits(**wanted), seed=0, lockstep=lockstep
        )
        left, ended = list(range(count)), []
        while len(ended) < count:
            while left and runner.free:
                position = left.pop(0)
                runner.start(position, suite[position])
            ended += await runner.advance()
            if runner.idle and len(ended) < count and not (left and runner.free):
                await asyncio.wait_for(runner.changed.wait(), 20)
        await runner.close()
        return ended

    return asyncio.run(serve())


def test_a_trajectory_records_turns_rewards_facts_and_the_explicit_label() -> None:
    ended = play(ToySuite(turns=3), max_turns=5, max_turn_tokens=3, stop=-1)
    assert len(ended) == 3
    for trajectory in ended:
        assert isinstance(trajectory, Trajectory)
        assert trajectory.turns == 3
        assert trajectory.info == {"turns": 3, "tool_calls": 3, "note": "done"}
        final = trajectory.reward - 0.5
        assert final in (0.0, 1.0)
        assert trajectory.failed == (final == 0.0)
        assert trajectory.policy_tokens == 9
        assert trajectory.finish_reason == "length"  # the last turn was cut by its budget


def test_log_probs_of_all_turns_are_those_of_a_full_forward_pass() -> None:
    class Done:
        def __init__(self, trajectory: Trajectory) -> None:
            self.tokens, self.policy = trajectory.tokens.tolist(), trajectory.action_mask.tolist()
            self.log_probs = trajectory.behavior_log_probs.tolist()

    for trajectory in play(ToySuite(turns=3, delay=0.01), count=6, slots=3, max_turns=3, max_turn_tokens=4):
        recorded, wanted = recorded_and_forward(POLICY.model, Done(trajectory))
        assert np.allclose(recorded, wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("behaviour", "reason", "detail"),
    [
        ("raises", "environment_error", "KeyError: 'broken tool'"),
        ("reset raises", "environment_error", "OSError: no such game"),
        ("none", "environment_error", "step returned None"),
        ("nan reward", "invalid_reward", "nan"),
        ("long prompt", "prompt_too_long", "rollout.max_context_tokens=48"),
    ],
)
def test_a_misbehaving_environment_drops_the_trajectory_under_its_reason(
    behaviour: str, reason: str, detail: str
) -> None:
    ToySuite.closed = 0
    ended = play(ToySuite(behaviour))
    assert [drop.reason for drop in ended] == [reason] * 3
    assert all(detail in drop.detail for drop in ended)
    assert ToySuite.closed == 3


def test_an_environment_that_hangs_is_given_up_after_its_limit() -> None:
    (drop,) = play(ToySuite("hangs"), count=1, step_timeout_s=0.2)
    assert drop.reason == "environment_timeout"
    assert "environment.step_timeout_s=0.2" in drop.detail


def test_limits_end_a_trajectory_with_their_own_reason() -> None:
    (turns,) = play(ToySuite(turns=9), count=1, max_turns=2, max_turn_tokens=2, stop=-1)
    assert turns.finish_reason == "turn_limit"
    assert turns.failed is None
    (tokens,) = play(ToySuite(turns=9), count=1, max_turns=9, max_new_tokens=5, max_turn_tokens=2, stop=-1)
    assert tokens.finish_reason == "length"
    assert tokens.policy_tokens == 5
    (context,) = play(
        ToySuite(turns=9), count=1, max_turns=9, max_context_tokens=14, max_turn_tokens=3, stop=-1
    )
    assert context.finish_reason == "context_limit"
    assert context.tokens.size <= 14


def test_a_tool_that_waits_does_not_hold_up_the_others() -> None:
    """The first episode's tool answers only after every other episode has ended."""

    class FirstWaitsForTheOthers(ToySuite):
        def __init__(self) -> None:
            super().__init__()
            self.others_ended = 0

        def environment(self):  # type: ignore[no-untyped-def]
            suite, episode = self, super().environment()
            inner = episode.step

            async def step(action: str):  # type: ignore[no-untyped-def]
                while episode.position == 0 and suite.others_ended < 11:
                    await asyncio.sleep(0.005)
                suite.others_ended += episode.position != 0
                return await inner(action)

            episode.step = step
            return episode

    ended = play(FirstWaitsForTheOthers(), count=12, slots=2, step_timeout_s=60.0)
    assert ended[-1].trajectory_id == 0
    assert all(isinstance(trajectory, Trajectory) for trajectory in ended)


def test_lockstep_play_is_identical_whatever_the_environments_latency() -> None:
    runs = [
        play(ToySuite(turns=2, delay=delay), count=5, slots=2, lockstep=True, max_turns=2)
        for delay in (0.0, 0.02)
    ]
    for a, b in zip(*runs, strict=True):
        assert a.trajectory_id == b.trajectory_id
        assert np.array_equal(a.tokens, b.tokens)
        assert np.array_equal(a.behavior_log_probs, b.behavior_log_probs)


def test_running_trajectories_older_than_the_bound_are_dropped_and_free_their_slot() -> None:
    generator = SlotGenerator(
        POLICY.model, slots=1, max_context=48, stop_tokens=frozenset(), sampling=Sampling()
    )
    limits = Limits(max_new_tokens=30, max_context_tokens=48)

    async def serve() -> tuple[list[object], int]:
        runner = EpisodeRunner(generator, ToySuite(), POLICY.tokenizer, limits, seed=0)
        generator.version = 4
        runner.start(0, ToySuite()[0])
        for _ in range(4):
            await runner.advance()
        await runner.drop_older_than(4)
        assert runner.free == 0
        await runner.drop_older_than(5)
        return await runner.advance(), runner.free

    (drop,), free = asyncio.run(serve())
    assert (drop.reason, free, generator.free) == ("policy_lag", 1, 1)
    assert "first token from version 4" in drop.detail
