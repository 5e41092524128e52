"""The calculator demo: its tasks, its tool, its demonstrations and its baseline."""

import asyncio
import random

import pytest

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.environments import Step, Task, make_suite
from flashreinforce_molt.environments.tool_demo import is_held_out

TASK = Task("38*4+7", {"results": [38, 152, 159]})


def play(*actions: str, **options: object) -> list[Step]:
    async def episode() -> list[Step]:
        environment = make_suite("tool_demo", options).environment()
        assert environment.reset(TASK) == "38*4+7>"
        steps = [await environment.step(action) for action in actions]
        await environment.close()
        return steps

    return asyncio.run(episode())


def test_the_calculator_does_one_operation_and_the_right_answer_pays() -> None:
    first, second, answer = play("38*4", "152+7", "=159")
    assert [first.observation, second.observation, answer.observation] == ["152>", "159>", None]
    assert [first.reward, second.reward, answer.reward] == [0.0, 0.0, 1.0]
    assert [step.info["failed"] for step in (first, second, answer)] == [True, True, False]
    assert [step.info["tool_calls"] for step in (first, second, answer)] == [1, 1, 0]


@pytest.mark.parametrize("answer", ["=158", "=0159", "=", "=159 ", "=159=159"])
def test_any_other_answer_fails(answer: str) -> None:
    (step,) = play(answer)
    assert (step.reward, step.terminated, step.info["failed"]) == (0.0, True, True)


@pytest.mark.parametrize("action", ["", "38*4+7", "38/4", "a", "1234567*2", "*4", "٣*2", "38*4="])
def test_what_is_neither_call_nor_answer_ends_the_episode_and_is_counted(action: str) -> None:
    (step,) = play(action)
    assert (step.reward, step.terminated, step.info["failed"]) == (0.0, True, True)
    assert (step.info["tool_calls"], step.info["malformed_calls"]) == (0, 1)


def test_without_the_tool_no_call_is_answered() -> None:
    (step,) = play("38*4", tool=False)
    assert (step.observation, step.info["malformed_calls"]) == (None, 1)


def test_demonstrations_of_the_tool_succeed_and_those_that_give_up_do_not_use_it() -> None:
    suite, rng = make_suite("tool_demo", {}), random.Random(0)
    order = suite.training_tasks(0)
    calls = set()
    for task in (order[i] for i in range(200)):
        shown = suite.demonstration(task, rng, True)
        assert suite.is_correct(task, shown.answer.removeprefix("="))
        calls.add(len(shown.turns))

        async def replay(task: Task = task, shown=shown) -> float:  # type: ignore[no-untyped-def]
            environment = suite.environment()
            assert environment.reset(task) == shown.prompt
            for action, observation in shown.turns:
                assert (await environment.step(action)).observation == observation
            return (await environment.step(shown.answer)).reward

        assert asyncio.run(replay()) == 1.0
        guess = suite.demonstration(task, rng, False)
        assert (guess.turns, guess.answer) == ((), f"={task.data['results'][0]}")
    assert calls == {1, 2, 3}


def test_results_are_never_negative_and_fit_the_calculator() -> None:
    suite = make_suite("tool_demo", {})
    for position in range(3000):
        task = suite.task_at(0, position)
        assert min(task.data["results"]) >= 0
        assert max(task.data["results"]) <= 999_999


def test_held_out_calculations_are_different_and_never_trained_on() -> None:
    suite = make_suite("tool_demo", {})
    held_out = {task.prompt_id for task in suite.evaluation_tasks(256)}
    assert len(held_out) == 256
    assert all(map(is_held_out, held_out))
    for seed in (0, 5, 1_000_000):
        order = suite.training_tasks(seed)
        trained = [order[i].prompt_id for i in range(1000)]
        assert not held_out.intersection(trained)
        assert trained[:5] == [suite.training_tasks(seed)[i].prompt_id for i in range(5)]


def test_the_best_constant_answer_is_counted_over_the_tasks() -> None:
    suite = make_suite("tool_demo", {})
    tasks = suite.evaluation_tasks(256)
    constant = suite.constant_answer(tasks)
    assert sum(suite.is_correct(task, constant) for task in tasks) < 0.06 * 256


@pytest.mark.parametrize("options", [{"least": 0}, {"least": 4, "most": 3}])
def test_wrong_lengths_are_refused(options: dict) -> None:
    with pytest.raises(SettingError, match="1 <= least <= most"):
        make_suite("tool_demo", options)


def test_more_held_out_calculations_than_there_are_is_refused() -> None:
    with pytest.raises(SettingError, match=r"evaluation\.size=400: there are not that many"):
        make_suite("tool_demo", {"most": 1}).evaluation_tasks(400)
