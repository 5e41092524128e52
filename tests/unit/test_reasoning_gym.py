"""The reasoning-gym suite: held-out questions, exact scores, baselines."""

import asyncio

import pytest

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.environments import make_suite
from flashreinforce_molt.environments.reasoning_gym import is_held_out

WORDS = {
    "dataset": "spell_backward",
    "parameters": {"min_word_len": 3, "max_word_len": 5},
    "template": "{word}>",
    "lowercase": True,
}


@pytest.mark.parametrize(
    "options", [WORDS, {"dataset": "chain_sum"}, {"dataset": "letter_counting", "chat": True, "shots": 2}]
)
def test_held_out_questions_never_occur_in_any_training_order(options: dict) -> None:
    suite = make_suite("reasoning_gym", options)
    held_out = {str(task.data["item"]["question"]).lower() for task in suite.evaluation_tasks(40)}
    assert len(held_out) == 40
    for seed in (0, 1, 17, 1_000_000):
        order = suite.training_tasks(seed)
        trained = {str(order[position].data["item"]["question"]).lower() for position in range(1500)}
        assert not trained & held_out


def test_held_out_ignores_case_and_spacing() -> None:
    questions = [f"Spell {i}" for i in range(2000)]
    assert 150 < sum(map(is_held_out, questions)) < 250
    assert all(is_held_out(q) == is_held_out(q.upper().replace(" ", "  ")) for q in questions)


def test_the_data_order_is_a_function_of_the_position() -> None:
    suite = make_suite("reasoning_gym", WORDS)
    first, again = suite.training_tasks(3), suite.training_tasks(3)
    assert [first[i].prompt_id for i in range(50)] == [again[i].prompt_id for i in reversed(range(50))][::-1]
    other = suite.training_tasks(4)
    assert [first[i].prompt_id for i in range(50)] != [other[i].prompt_id for i in range(50)]


def play(suite, task, answer):  # type: ignore[no-untyped-def]
    episode = suite.environment()
    prompt = episode.reset(task)
    return prompt, asyncio.run(episode.step(answer))


def test_only_the_full_score_is_a_reward_and_the_label_is_explicit() -> None:
    suite = make_suite("reasoning_gym", WORDS)
    task = suite.evaluation_tasks(1)[0]
    word = task.data["item"]["metadata"]["word"].lower()
    prompt, right = play(suite, task, word[::-1])
    assert prompt == f"{word}>"
    assert (right.reward, right.terminated, right.info["failed"]) == (1.0, True, False)
    # the library gives 0.8 for a right answer with a tail: that is not right
    _, leaked = play(suite, task, word[::-1] + "x")
    assert (leaked.reward, leaked.info["failed"]) == (0.0, True)


def test_the_constant_answer_is_the_commonest_one() -> None:
    suite = make_suite(
        "reasoning_gym", {"dataset": "letter_counting", "parameters": {"min_words": 3, "max_words": 5}}
    )
    tasks = suite.evaluation_tasks(60)
    answers = [task.data["item"]["answer"] for task in tasks]
    constant = suite.constant_answer(tasks)
    assert answers.count(constant) == max(answers.count(answer) for answer in set(answers))
    assert sum(suite.is_correct(task, constant) for task in tasks) == answers.count(constant)


def test_solved_examples_come_before_the_question_and_are_not_trained_or_evaluated() -> None:
    suite = make_suite(
        "reasoning_gym", {"dataset": "letter_counting", "chat": True, "shots": 2, "instruction": "A number."}
    )
    messages = suite.training_tasks(0)[0].data["prompt"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    shown = {messages[1]["content"], messages[3]["content"]}
    assert not any(is_held_out(question) for question in shown)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "no_such_set"}, "no_such_set"),
        ({**WORDS, "template": "{wort}>"}, "unknown field 'wort'; known: question, "),
        ({**WORDS, "parameters": {"min_word_len": 9, "max_word_len": 3}}, "max_word_len must be"),
        ({**WORDS, "parameters": {"min_word_length": 3}}, "min_word_length"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_suite("reasoning_gym", options)


def test_more_held_out_questions_than_there_are_is_refused() -> None:
    suite = make_suite("reasoning_gym", {**WORDS, "parameters": {"min_word_len": 3, "max_word_len": 3}})
    with pytest.raises(SettingError, match=r"evaluation.size=5000: spell_backward yields only \d+ held-out"):
        suite.evaluation_tasks(5000)
