"""Imported by the nursery: runs the parser and the comparison once, so that every worker starts with them warm."""

from __future__ import annotations

import logging

from flashreinforce_molt.graders.equality import same_answer

logging.disable(logging.CRITICAL)  # math-verify logs whole answers
for _gold, _answer in (
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"(1,\infty)", "x>1"),
    ("x^2-1", "(x-1)(x+1)"),
):
    assert same_answer(_gold, _answer)
