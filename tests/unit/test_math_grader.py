import asyncio
import os
import signal
import time

import pytest
from answer_pairs import EQUAL, UNEQUAL

from flashreinforce_molt.graders import GradingError, MathGrader, last_box
from flashreinforce_molt.graders.boxed import MAX_SCANNED_CHARS
from flashreinforce_molt.graders.forms import clean

CASES = [
    (kind, gold, answer, verdict)
    for table, verdict in ((EQUAL, "correct"), (UNEQUAL, "wrong"))
    for kind, pairs in table.items()
    for gold, answer in pairs
]


@pytest.fixture(scope="module")
def grader():
    grader = MathGrader(timeout=30.0)  # another process may hold the cores; the limit has its own tests
    yield grader
    grader.close()


def grade_all(grader, pairs):
    async def run():
        return await asyncio.gather(
            *(grader.grade(rf"So the answer is \boxed{{{answer}}}.", gold) for gold, answer in pairs)
        )

    return asyncio.run(run())


@pytest.fixture(scope="module")
def verdicts(grader):
    """Verdicts of every pair, both ways round."""
    both = [pair for _, gold, answer, _ in CASES for pair in ((gold, answer), (answer, gold))]
    return dict(zip(both, grade_all(grader, both), strict=True))


@pytest.mark.parametrize(("kind", "gold", "answer", "verdict"), CASES)
def test_verdict_is_right_and_symmetric(verdicts, kind, gold, answer, verdict):
    assert (verdicts[gold, answer], verdicts[answer, gold]) == (verdict, verdict)


def test_the_table_is_large_enough():
    assert len(CASES) >= 150


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{7}", "7"),
        (r"first \boxed{3}, no, \boxed{7}", "7"),
        (r"\boxed{3} and \boxed{7", "3"),
        (r"\boxed{ text \boxed{7}", "7"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{x=\boxed{7}}", "x=7"),
        (r"\boxed{\boxed{1}, \boxed{2}}", "1, 2"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\\boxed{7}", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1\right.}", r"\left\{1\right."),
        (r"} } \boxed{7} {", "7"),
        ("\\boxed{a\nb}", "a\nb"),
        (r"\boxed{7} then put it in \boxed{}", "7"),
        (r"\boxed{  }", None),
        (r"\boxed 7", None),
        (r"\boxed{7", None),
        ("7", None),
        ("", None),
        (r"\boxed{" * 50_000, None),
        ("{" * 500_000, None),
        (r"\boxed{" * 20_000 + "7" + "}" * 20_000, "7"),
        (r"\boxed{1}" + "x" * MAX_SCANNED_CHARS, None),
    ],
)
def test_the_last_balanced_box_is_found_in_bounded_time(response, answer):
    before = time.monotonic()
    assert last_box(response) == answer
    assert time.monotonic() - before < 2


def test_an_answer_that_was_extracted_already_is_not_searched_again(grader):
    async def run():
        return [
            await grader.grade_answer("7", "7"),
            await grader.grade_answer("final answer is 7, not 8", "8"),
            await grader.grade_answer(r"\boxed{7}", "7"),
            await grader.grade_answer(" ", "7"),
            await grader.grade("7", "7"),
        ]

    assert asyncio.run(run()) == ["correct", "wrong", "correct", "no_answer", "no_answer"]


@pytest.mark.parametrize("gold", ["", "  ", None, 7])
def test_a_gold_answer_that_is_no_text_is_an_error_and_not_wrong(gold):
    grader = MathGrader()
    assert asyncio.run(grader.grade(r"\boxed{7}", gold)) == "error"
    assert "gold answer" in grader.last_error
    assert grader.counts == {"correct": 0, "wrong": 0, "no_answer": 0, "timeout": 0, "error": 1}


def test_hostile_answers_cost_the_limit_and_are_never_correct():
    """A few of those in tests/integration/test_hostile_answers.py."""

    async def run():
        async with MathGrader(timeout=0.3, memory_mb=500) as grader:
            await grader.grade(r"\boxed{x+1}", "1+x")
            for answer, verdict in (
                ("9^{9^{9^9}}", "timeout"),
                ("99999999!", "timeout"),
                ("(" * 190 + "1" + ")" * 190, "timeout"),
                ("7" * 100_000, "wrong"),
                (r"\frac{1}{0}", "wrong"),
                ("\x00\ud800", "wrong"),
            ):
                before = time.monotonic()
                assert await grader.grade(rf"\boxed{{{answer}}}", "2") == verdict, answer[:50]
                assert time.monotonic() - before < 2, answer[:50]
            assert await grader.grade(r"\boxed{x+1}", "1+x") == "correct"
            assert grader.counts == {"correct": 2, "wrong": 3, "no_answer": 0, "timeout": 3, "error": 0}

    asyncio.run(run())


def test_500_easy_answers_beside_hostile_ones_are_all_graded():
    async def run():
        async with MathGrader(timeout=0.5) as grader:
            await grader.grade(r"\boxed{x+1}", "1+x")
            hostile = asyncio.ensure_future(grader.grade(r"\boxed{9^{9^{9^9}}}", "2"))
            await asyncio.sleep(0)
            easy = [
                grader.grade(rf"\boxed{{{n}+x}}" if n % 20 == 0 else rf"\boxed{{{n}}}", f"x+{n}")
                for n in range(500)
            ]
            assert [v == "correct" for v in await asyncio.gather(*easy)] == [n % 20 == 0 for n in range(500)]
            assert await hostile == "timeout"

    asyncio.run(run())


def test_a_worker_killed_from_outside_never_makes_an_answer_wrong():
    async def run():
        async with MathGrader(workers=1) as grader:
            assert await grader.grade(r"\boxed{x+1}", "1+x") == "correct"
            for _ in range(3):
                worker = grader.pool.submit(os.getpid).result()
                os.kill(worker, signal.SIGKILL)
                assert await grader.grade(r"\boxed{x+1}", "1+x") == "correct"

    asyncio.run(run())


def test_a_pool_that_cannot_work_gives_error_and_says_why(monkeypatch):
    async def run():
        async with MathGrader() as grader:

            async def broken(*arguments):
                raise GradingError("the worker died twice")

            monkeypatch.setattr(grader.pool, "call", broken)
            assert await grader.grade(r"\boxed{x+1}", "1+x") == "error"
            assert grader.last_error == "'x+1' against '1+x': the worker died twice"

    asyncio.run(run())


def test_without_math_verify_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install -e '.\[tools\]'"):
        MathGrader()


@pytest.mark.parametrize(("kind", "gold", "answer", "verdict"), CASES)
def test_cleaning_twice_changes_nothing(kind, gold, answer, verdict):
    for text in (gold, answer):
        assert clean(clean(text).text).text == clean(text).text
