"""Every hostile answer that we know, against several gold answers."""

import asyncio
import time

import pytest

from flashreinforce_molt.graders import MathGrader

pytestmark = pytest.mark.slow

HOSTILE = [
    "9^{9^{9^9}}",
    "99999999!",
    "(" * 190 + "1" + ")" * 190,
    "(" * 2000 + "1" + ")" * 2000,
    "7" * 100_000,
    "(x+y+z+w)^{300}",
    "-" * 900 + "1",
    r"\pm" * 300,
    r"\{" * 300,
    r"\frac{" * 90 + "1" + "}{1}" * 90,
    r"x^{" * 100 + "2" + "}" * 100,
    "10^{999999999}",
    "1e999999999",
    r"\binom{10^9}{10^8}",
    r"\int_0^1 e^{e^{x^{x}}} dx",
    "__import__('os').system('touch /tmp/x')",
    "\x00\x01",
    "\ud800",
    ",".join(f"x^{{{n}}}" for n in range(90)),
    "x=" * 300 + "8",
]


def test_hostile_answers_cost_at_most_the_limit_and_are_never_correct():
    async def run():
        async with MathGrader(timeout=1.0, memory_mb=500) as grader:
            await grader.grade(r"\boxed{x+1}", "1+x")
            for answer in HOSTILE:
                for gold, boxed in (("2", rf"\boxed{{{answer}}}"), ("x^2+1", rf"\boxed{{{answer}}}")):
                    before = time.monotonic()
                    assert await grader.grade(boxed, gold) != "correct", answer[:50]
                    assert time.monotonic() - before < 4, answer[:50]
            assert await grader.grade(r"\boxed{x+1}", "1+x") == "correct"
            assert grader.counts["timeout"] >= 5
            assert sum(grader.counts.values()) == 2 * len(HOSTILE) + 2

    asyncio.run(run())
