"""The answer that a response commits to: the content of its last balanced box."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_SCANNED_CHARS = 200_000
"""Only this much of a response's end is searched; the final answer stands there."""

# Two backslashes are one that somebody escaped; an escaped brace neither opens nor closes.
_TOKEN = re.compile(r"\\+(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class _Box:
    """A balanced box: where its command, its content and the content's end stand."""

    command: int
    start: int
    end: int


def last_box(text: str) -> str | None:
    r"""Content of the last balanced `\boxed{...}` or `\fbox{...}` that holds something; None when there is none.

    A box around boxes counts as one answer, their own wrappers removed. A box that never closes is no box, but one
    inside it still counts. Takes time linear in the length, whatever the text.
    """
    text = text[-MAX_SCANNED_CHARS:]
    boxes = _balanced_boxes(text)
    while boxes:
        inner_from = outer = len(boxes) - 1  # the outer one closes last, so it stands behind those inside it
        while inner_from and boxes[inner_from - 1].command >= boxes[outer].start:
            inner_from -= 1
        content = _without_wrappers(text, boxes[inner_from:outer], boxes[outer].start, boxes[outer].end)
        if content:
            return content
        del boxes[inner_from:]
    return None


def unwrap_boxes(text: str) -> str:
    """`text` without the wrappers of the balanced boxes in it."""
    return _without_wrappers(text, _balanced_boxes(text), 0, len(text))


def _balanced_boxes(text: str) -> list[_Box]:
    """Every balanced box, in the order in which they close."""
    open_braces: list[re.Match[str]] = []
    boxes: list[_Box] = []
    for token in _TOKEN.finditer(text):
        if token.group() == "}":
            opening = open_braces.pop() if open_braces else None
            if opening is not None and len(opening.group()) > 1:
                boxes.append(_Box(opening.start(), opening.end(), token.start()))
        elif token.group() == "{" or len(token.group()) > 2:  # not an escaped character
            open_braces.append(token)
    return boxes


def _without_wrappers(text: str, boxes: list[_Box], start: int, end: int) -> str:
    cuts = sorted([(box.command, box.start) for box in boxes] + [(box.end, box.end + 1) for box in boxes])
    starts = [start, *(stop for _, stop in cuts)]
    ends = [*(begin for begin, _ in cuts), end]
    return "".join(text[begin:stop] for begin, stop in zip(starts, ends, strict=True)).strip()
