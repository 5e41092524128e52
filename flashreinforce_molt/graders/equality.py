r"""Whether two answers are equal: by their cleaned text and as exact numbers first, then by math-verify.

math-verify judges single expressions. Lists, sets, tuples, labels such as `x =` and `\pm` are taken apart here, and
compared part by part: its own comparison depends on the order of its arguments and unwraps equations too readily
(`x^2 = 3` would count as 3). Everything here may take for ever on hostile text, so it runs in a `GradingPool`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flashreinforce_molt.graders.forms import Form, clean
from flashreinforce_molt.graders.numbers import equal_numbers, parse_number

RELATIVE_TOLERANCE = 1e-6
"""Numbers that math-verify calls equal must be this close; its own tolerance is absolute, so any two tiny ones pass."""

_WORDS = re.compile(r"(?:no|on|[A-Za-z]{3,}|[A-Za-z'-]+(?: [A-Za-z'-]+)+)\.?")
_RELATION = re.compile(r"<|>|\\(?:le|ge|ne)(?![a-zA-Z])")
_EQUALS = re.compile(r"(?<![<>!=\\])=+")
_LABEL = re.compile(
    r"\\?[A-Za-z]+(?: [A-Za-z]+)*(?:_\{\w+\})?'*(?:\([A-Za-z](?:,[A-Za-z])*\))?|\([a-z](?:,[a-z])+\)"
)
_MEMBER = re.compile(r"^[A-Za-z]\\in(?![a-zA-Z])")
_SET_BUILDER = re.compile(r"\\\{[a-z](?:\\mid(?![a-zA-Z])|\||:)(.*)\\\}")
_CHOICE = re.compile(r"\(([A-H])\)(.+)")
_TOKEN = re.compile(r"\\(?:[a-zA-Z]+|.)|.", re.DOTALL)
_BRACKETS = {"(": "(", "[": "[", r"\{": "{", r"\langle": "(", "{": ""}
_CLOSING_BRACKETS = {")": ")", "]": "]", r"\}": "}", r"\rangle": ")", "}": ""}
_SEPARATORS = {",", ";", r"\lor", r"\land"}
_MATRIX = re.compile(r"\\begin\{[pbBv]?matrix\}(.*)\\end\{[pbBv]?matrix\}", re.DOTALL)


def quick_verdict(gold: Form, answer: Form) -> bool | None:
    """What can be told without algebra, in microseconds; None when it takes algebra."""
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if gold.text == answer.text:
        return bool(gold.text)
    left, right = parse_number(gold.text), parse_number(answer.text)
    if left is not None and right is not None:
        return equal_numbers(left, right)
    if _WORDS.fullmatch(gold.text) and _WORDS.fullmatch(answer.text):
        return gold.text.rstrip(".").casefold() == answer.text.rstrip(".").casefold()
    return None


def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers, as text without their boxes, are equal; needs math-verify."""
    left, right = clean(gold), clean(answer)
    verdict = quick_verdict(left, right)
    return _same(left.text, right.text) if verdict is None else verdict


def _same(gold: str, answer: str) -> bool:
    gold, answer = (_SET_BUILDER.sub(r"\1", _MEMBER.sub("", side)).strip() for side in (gold, answer))
    if not gold or not answer:
        return False
    if _RELATION.search(gold) or _RELATION.search(answer):
        return _same_relations(gold, answer)
    for one, other in ((gold, answer), (answer, gold)):
        if (choice := _CHOICE.fullmatch(one)) and not _CHOICE.fullmatch(other):
            return same_answer(choice[1] if re.fullmatch("[A-H]", other) else choice[2], other)
    left, right = _Collection.read(gold), _Collection.read(answer)
    if left and right:
        return left.equals(right)
    for collection, other in ((left, answer), (right, gold)):
        if collection and collection.kind in ("{}", "") and len(collection.elements) == 1:
            return same_answer(collection.elements[0], other)
        if collection and collection.kind in ("{}", "") and not _EQUALS.search(other):
            return False  # several values against one
    if _EQUALS.search(gold) or _EQUALS.search(answer):
        return _same_equations(gold, answer)
    return _same_expressions(gold, answer)


# Collections


@dataclass(frozen=True)
class _Collection:
    """`kind` holds the brackets: "()" a tuple or an open interval, "[)" an interval, "{}" a set, "" a bare list."""

    kind: str
    elements: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> _Collection | None:
        """The collection that a cleaned answer spells, if it is one."""
        if matrix := _MATRIX.fullmatch(text):
            rows = [row.split("&") for row in matrix[1].split(r"\\") if row]
            if len(rows) > 1 and any(len(row) > 1 for row in rows):
                return None
            return cls("()", tuple(cell for row in rows for cell in row))
        parts, brackets = _split(text)
        if len(parts) > 1:
            return cls("", _expanded(parts))
        if brackets and (inner := text[len(brackets[0]) : len(text) - len(brackets[1])]):
            kind = _BRACKETS[brackets[0]] + _CLOSING_BRACKETS[brackets[1]]
            parts, _ = _split(inner)
            if kind == "{}" or (kind and len(parts) > 1):
                return cls(kind, _expanded(parts))
        expanded = _expanded(parts)
        return cls("", expanded) if len(expanded) > 1 else None

    def equals(self, other: _Collection) -> bool:
        kinds = {self.kind, other.kind}
        size = len(self.elements)
        if "{}" in kinds:
            unordered = kinds <= {"{}", ""} and not (self._is_labelled() or other._is_labelled())
            return unordered and self._holds(other) and other._holds(self)
        if size != len(other.elements):
            return False
        if kinds == {""} and not (self._is_labelled() ^ other._is_labelled()):
            return self._holds(other, once=True)
        if len(kinds) > 1 and not (kinds == {"()", ""} or (size > 2 and kinds <= {"()", "[]", ""})):
            return False  # [1,2] is an interval beside (1,2), but nobody writes [1,2,3] for one
        return all(
            same_answer(left, right) for left, right in zip(self.elements, other.elements, strict=True)
        )

    def _holds(self, other: _Collection, *, once: bool = False) -> bool:
        """Whether every element of `other` is here; with `once`, each of ours stands for one of them."""
        left = list(self.elements)
        for element in other.elements:
            found = next((mine for mine in left if same_answer(mine, element)), None)
            if found is None:
                return False
            if once:
                left.remove(found)
        return True

    def _is_labelled(self) -> bool:
        """Whether the elements name different unknowns, as in x=1, y=2: then their order means something."""
        labels = {element.partition("=")[0] for element in self.elements if "=" in element}
        return len(labels) > 1


def _split(text: str) -> tuple[list[str], tuple[str, str] | None]:
    """The parts between separators outside brackets, and the pair of brackets around the whole, if there is one."""
    parts, opened, start = [], [], 0
    around: tuple[str, str] | None = None
    for token in _TOKEN.finditer(text):
        symbol = token.group()
        if symbol in _BRACKETS:
            opened.append(token)
        elif symbol in _CLOSING_BRACKETS and opened:
            first = opened.pop()
            if first.start() == 0 and token.end() == len(text):
                around = first.group(), symbol
        elif symbol in _SEPARATORS and not opened:
            parts.append(text[start : token.start()])
            start = token.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()], around


def _expanded(parts: Sequence[str]) -> tuple[str, ...]:
    r"""The parts, with two in place of each that holds `\pm`."""
    expanded: list[str] = []
    for part in parts:
        if r"\pm" in part:
            expanded.append(part.replace(r"\pm", "+").replace(r"\mp", "-"))
            expanded.append(part.replace(r"\pm", "-").replace(r"\mp", "+"))
        else:
            expanded.append(part)
    return tuple(expanded)


# Equations and inequalities


def _same_equations(gold: str, answer: str) -> bool:
    left, right = _values(gold), _values(answer)
    if left is None or right is None or (left[0] and right[0] and left[0] != right[0]):
        both = _EQUALS.search(gold) and _EQUALS.search(answer)
        return bool(both) and _same_expressions(gold, answer)
    return all(same_answer(mine, theirs) for mine in left[1] for theirs in right[1])


def _values(text: str) -> tuple[str, list[str]] | None:
    """Label and values of x = 1/2 = 0.5, or of arithmetic without unknowns; None for an equation proper."""
    first, *rest = _EQUALS.split(text)
    if not rest:
        return "", [first]
    if _LABEL.fullmatch(first):
        return first, rest
    unknowns = re.search(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])", re.sub(r"\\[a-zA-Z]+", " ", text))
    return None if unknowns else ("", [first, *rest])


def _same_relations(gold: str, answer: str) -> bool:
    """1 < x < 2 against x > 1 and x < 2, (1, 2), or 2 > x > 1."""
    both = _RELATION.search(gold) and _RELATION.search(answer)
    if both and _same_expressions(gold, answer):
        return True
    left, right = _solutions(gold), _solutions(answer)
    if left is not None and right is not None:
        same_unknown = left[1] == right[1] or not (left[1] and right[1])
        return same_unknown and (
            left[0] == right[0] or left[0].symmetric_difference(right[0]).is_empty is True
        )
    if not both or (r"\lor" in gold) != (r"\lor" in answer):
        return False
    parts, other_parts = _split(gold)[0], _split(answer)[0]
    if len(parts) == len(other_parts) == 1:
        return False
    return _Collection("", tuple(parts)).equals(_Collection("", tuple(other_parts)))


def _solutions(text: str) -> tuple[Any, frozenset[Any]] | None:
    r"""The set that relations of one unknown, or intervals, describe, and the unknown; `\lor` unites, `and` intersects."""
    from sympy import Intersection, Set, Union

    if not _RELATION.search(text) and len(_split(text)[0]) > 1:
        return None  # a list of values
    unknowns: frozenset[Any] = frozenset()
    alternatives = []
    for alternative in text.split(r"\lor"):
        conditions = []
        for condition in _split(alternative)[0]:
            parsed = _parse(condition, is_real=True)
            if parsed is None:
                return None
            if not isinstance(parsed, Set):
                unknowns |= parsed.free_symbols
                if len(unknowns) != 1 or not hasattr(parsed, "as_set"):
                    return None
                try:
                    parsed = parsed.as_set()
                except (NotImplementedError, TypeError, ValueError):  # SymPy cannot solve it
                    return None
            conditions.append(parsed)
        alternatives.append(Intersection(*conditions))
    return Union(*alternatives), unknowns


# Expressions


def _same_expressions(gold: str, answer: str) -> bool:
    from math_verify import verify
    from math_verify.grader import should_treat_as_complex

    is_real = not (should_treat_as_complex(gold) or should_treat_as_complex(answer))
    left, right = _parse(gold, is_real=is_real), _parse(answer, is_real=is_real)
    if left is None or right is None:
        return False
    return any(
        verify(one, other, timeout_seconds=None, allow_set_relation_comp=True)
        for one, other in ((left, right), (right, left))
    ) and _close(left, right)


@lru_cache(maxsize=64)
def _parse(text: str, *, is_real: bool) -> Any:
    """The SymPy object that a cleaned answer spells; None when it spells none, or no definite value."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from sympy import nan, zoo

    # Not by math_verify.parse: that searches the text for something that looks like an answer, once more.
    config = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
    if re.search(r"\d \d", text):  # it would join the two numbers
        return None
    try:
        parsed = latex2sympy(
            normalize_latex(text, config), is_real=is_real, convert_degrees=False, normalization_config=None
        )
    except (MemoryError, RecursionError):
        raise
    except Exception:  # it has no exception of its own for text that is not LaTeX mathematics
        return None
    return None if parsed in (nan, zoo) else parsed


def _close(left: Any, right: Any) -> bool:
    from sympy import Expr, N

    if left == right or not all(isinstance(side, Expr) and side.is_number for side in (left, right)):
        return True
    a, b = N(left, 30), N(right, 30)
    return bool(abs(a - b) <= RELATIVE_TOLERANCE * max(abs(a), abs(b)))
