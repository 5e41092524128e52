import pytest
from data_files import DAPO_BEFORE, DAPO_BEHIND

from flashreinforce_molt.data.questions import answer_key, bare_question, question_key


@pytest.mark.parametrize(
    "text",
    [
        "How many?",
        f"{DAPO_BEFORE}How many?{DAPO_BEHIND}",
        "How many?\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
        "  How\u00a0many?\n",
        "Ｈow many?",  # NFKC: a full-width letter
        "How \t\n many?",
    ],
)
def test_templates_unicode_variants_and_white_space_make_no_other_question(text):
    assert question_key(text) == question_key("How many?")


@pytest.mark.parametrize("other", ["How many ?", "how many?", "How many? 2", "Howmany?"])
def test_questions_that_differ_stay_apart(other):
    assert question_key(other) != question_key("How many?")


def test_the_bare_question_keeps_its_own_lines():
    assert bare_question(f"{DAPO_BEFORE}Line one\nline  two{DAPO_BEHIND}") == "Line one\nline  two"


@pytest.mark.parametrize(
    ("one", "other"), [("0.5", r"\frac12"), ("1,000", "1000"), ("$34$", "34"), ("34.0", "34")]
)
def test_spellings_of_one_answer_are_no_conflict(one, other):
    assert answer_key(one) == answer_key(other)


@pytest.mark.parametrize(
    ("one", "other"), [("34", "35"), ("1", "-1"), (r"5\text{ cm}", r"5\text{ m}"), ("50", r"50\%")]
)
def test_different_answers_conflict(one, other):
    assert answer_key(one) != answer_key(other)
