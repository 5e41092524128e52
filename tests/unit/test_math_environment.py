"""Mathematics in one turn: rewards, the explicit label, and verdicts that nobody has."""

import asyncio
from pathlib import Path

import pytest
from math_rows import write_rows

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.environments import EpisodeLost, Step, Task, make_suite, opened

pytest.importorskip("math_verify", reason="needs the extra [tools]")

TASK = Task("t", {"prompt": [{"role": "user", "content": "Half of 1?"}], "gold": "\\frac{1}{2}"})


def answer(suite, task: Task, *responses: str) -> list[Step]:  # type: ignore[no-untyped-def]
    async def play() -> list[Step]:
        async with opened(suite):
            steps = []
            for response in responses:
                episode = suite.environment()
                assert episode.reset(task) == task.data["prompt"]
                steps.append(await episode.step(response))
                await episode.close()
            return steps

    return asyncio.run(play())


def test_only_a_right_answer_in_a_box_is_rewarded_and_every_step_is_labelled() -> None:
    steps = answer(
        make_suite("math", {}), TASK, "so \\boxed{0.5}", "\\boxed{\\frac{2}{4}}", "\\boxed{2}", "0.5"
    )
    assert [step.reward for step in steps] == [1.0, 1.0, 0.0, 0.0]
    assert [step.info["failed"] for step in steps] == [False, False, True, True]
    assert [step.info["no_answer"] for step in steps] == [False, False, False, True]
    assert all(step.terminated and step.observation is None for step in steps)


def test_a_row_that_molt_hands_on_is_graded_as_ours() -> None:
    task = Task("t", {"prompt": "Half of 1?", "ground_truth": "0.5", "style": "boxed"})
    assert answer(make_suite("math", {}), task, "\\boxed{1/2}")[0].reward == 1.0


@pytest.mark.parametrize(
    ("gold", "response", "reason"),
    [
        ("8", "\\boxed{9^{9^{9^9}}}", "grader_timeout"),
        (" ", "\\boxed{1}", "grader_error"),
    ],
)
def test_without_a_verdict_the_episode_is_lost_and_gets_no_reward(
    gold: str, response: str, reason: str
) -> None:
    suite = make_suite("math", {"grader_timeout_s": 0.3})
    with pytest.raises(EpisodeLost) as lost:
        answer(suite, Task("t", {"prompt": "?", "gold": gold}), response)
    assert lost.value.reason == reason


def test_a_suite_can_be_opened_again_and_refuses_to_judge_while_closed() -> None:
    suite = make_suite("math", {})
    for _ in range(2):
        assert answer(suite, TASK, "\\boxed{0.5}")[0].reward == 1.0
    with pytest.raises(RuntimeError, match="the suite is not open"):
        asyncio.run(suite.judge(TASK, "\\boxed{0.5}"))


def test_tasks_come_from_the_prepared_file_in_an_order_that_the_seed_fixes(tmp_path: Path) -> None:
    suite = make_suite("math", {"path": write_rows(tmp_path / "train.jsonl", range(50))})
    order, again, other = suite.training_tasks(1), suite.training_tasks(1), suite.training_tasks(2)
    questions = [order[i].data["question"] for i in range(50)]
    assert sorted(questions) == sorted(f"What is {n}+1?" for n in range(50))
    assert questions == [again[i].data["question"] for i in range(50)]
    assert questions != [other[i].data["question"] for i in range(50)]
    few = make_suite("math", {"path": suite.path, "max_rows": 5}).training_tasks(0)
    assert {few[i].data["gold"] for i in range(15)} == {"1", "2", "3", "4", "5"}


def test_held_out_tasks_are_spread_over_their_files(tmp_path: Path) -> None:
    files = [
        write_rows(tmp_path / f"{name}.jsonl", range(start, start + 4))
        for name, start in (("a", 10), ("b", 20))
    ]
    suite = make_suite("math", {"path": write_rows(tmp_path / "t.jsonl", range(5)), "evaluation_path": files})
    assert [task.data["gold"] for task in suite.evaluation_tasks(4)] == ["11", "13", "21", "23"]
    with pytest.raises(SettingError, match=r"evaluation.size=9: the held-out files hold only 8 questions"):
        suite.evaluation_tasks(9)


def test_a_held_out_question_that_is_trained_on_is_refused(tmp_path: Path) -> None:
    train, held_out = (write_rows(tmp_path / f"{i}.jsonl", range(i, i + 5)) for i in (0, 4))
    with pytest.raises(
        SettingError, match=r"1 held-out questions are in the training file .*'What is 4\+1\?'"
    ):
        make_suite("math", {"path": train, "evaluation_path": held_out}).evaluation_tasks(5)


def test_missing_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"data.path is empty"):
        make_suite("math", {}).training_tasks(0)
    with pytest.raises(
        SettingError, match=r"data.path: .*no.jsonl does not exist; `flashreinforce-molt prepare`"
    ):
        make_suite("math", {"path": str(tmp_path / "no.jsonl")}).training_tasks(0)
    with pytest.raises(SettingError, match=r"evaluation.size=8 needs held-out questions"):
        make_suite("math", {}).evaluation_tasks(8)
