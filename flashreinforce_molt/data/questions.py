"""When two questions are the same: the text without templates, Unicode variants and white space."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache

from flashreinforce_molt.data.prompts import BOXED
from flashreinforce_molt.graders.forms import clean
from flashreinforce_molt.graders.numbers import parse_number

_INSTRUCTIONS = (
    # DAPO-Math-17k: before and behind every question
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.",
    'Remember to put your answer on its own line after "Answer:".',
    # Common elsewhere
    BOXED,
    "Please reason step by step, and put your final answer within \\boxed{{}}.",
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Let's think step by step and output the final answer within \\boxed{{}}.",
)


def bare_question(text: str) -> str:
    """The question alone: known instructions before and behind it are removed."""
    text = text.strip()
    while True:
        before = text
        for instruction in _INSTRUCTIONS:
            text = text.removeprefix(instruction).removesuffix(instruction).strip()
        if text == before:
            return text


def normal_question(text: str) -> str:
    """Text that is equal for the same question: NFKC, and one space wherever there is white space."""
    return " ".join(unicodedata.normalize("NFKC", bare_question(text)).split())


def question_key(text: str) -> bytes:
    """Start of the SHA-256 of the normal text; questions are told apart, ordered and chosen by it.

    Empty where no text is left.
    """
    normal = normal_question(text)
    return _digest(normal)[:16] if normal else b""


@lru_cache(maxsize=65_536)
def answer_key(answer: str) -> bytes:
    """Equal for answers that differ in spelling only, so that `\\frac12` and 1/2 are no conflict."""
    form = clean(answer)
    number = parse_number(form.text)
    text = form.text if number is None else f"{number.value}{'%' if number.percent else ''}"
    return _digest(f"{text} {form.unit}")[:8]


def words(text: str) -> list[str]:
    """Lower-case words and numbers of a question, for telling that two are nearly the same."""
    return re.findall(r"[a-z0-9]+", unicodedata.normalize("NFKC", bare_question(text)).casefold())


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
