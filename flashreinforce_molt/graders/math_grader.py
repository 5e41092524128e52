"""Verdicts on the answers of mathematics problems."""

from __future__ import annotations

import importlib.util
from typing import Literal

from flashreinforce_molt.graders.boxed import last_box
from flashreinforce_molt.graders.equality import quick_verdict, same_answer
from flashreinforce_molt.graders.forms import clean
from flashreinforce_molt.graders.pool import GradingError, GradingPool, GradingTimeout

Verdict = Literal["correct", "wrong", "no_answer", "timeout", "error"]
VERDICTS: tuple[Verdict, ...] = ("correct", "wrong", "no_answer", "timeout", "error")

MAX_ANSWER_CHARS = 1000
"""A longer answer that is not literally the gold one is wrong; mathematics of that length is an attack or a loop."""


class MathGrader:
    r"""Grades the last balanced `\boxed{}` of a response against the gold answer.

        async with MathGrader() as grader:
            verdict = await grader.grade(response, gold)

    "timeout" and "error" say that nobody knows: a caller must not take them for "wrong". All verdicts are counted in
    `counts`, and `last_error` tells what the newest "error" was about. `timeout` is in seconds for one answer;
    `pool` takes the workers of another owner, who then closes them.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        timeout: float = 3.0,
        memory_mb: int = 1024,
        pool: GradingPool | None = None,
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ModuleNotFoundError("MathGrader needs math-verify: pip install -e '.[tools]'")
        self._owns_pool = pool is None
        self.pool = pool or GradingPool(
            workers=workers,
            timeout=timeout,
            memory_mb=memory_mb,
            preload=["math_verify", "flashreinforce_molt.graders.warm"],
        )
        self.counts: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
        self.last_error: str | None = None

    async def grade(self, response: str, gold: str) -> Verdict:
        """Verdict on a whole response. Never raises for what the model wrote, whatever it is."""
        return await self.grade_answer(last_box(response) or "", gold)

    async def grade_answer(self, answer: str, gold: str) -> Verdict:
        """Verdict on an answer that was extracted already."""
        if not isinstance(gold, str) or not gold.strip():
            self.last_error = f"the gold answer {gold!r} is empty or no text"
            return self._count("error")
        if not answer.strip():
            return self._count("no_answer")
        if answer.strip() == gold.strip():
            return self._count("correct")
        if len(answer) > MAX_ANSWER_CHARS:
            return self._count("wrong")
        known = quick_verdict(clean(gold), clean(answer))
        if known is not None:
            return self._count("correct" if known else "wrong")
        try:
            return self._count("correct" if await self.pool.call(same_answer, gold, answer) else "wrong")
        except GradingTimeout:
            return self._count("timeout")
        except GradingError as error:
            self.last_error = f"{answer[:200]!r} against {gold[:200]!r}: {error}"
            return self._count("error")

    def close(self) -> None:
        """Stop the workers."""
        if self._owns_pool:
            self.pool.close()

    async def __aenter__(self) -> MathGrader:
        if self._owns_pool:
            self.pool.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._owns_pool:
            await self.pool.__aexit__(*exception)

    def _count(self, verdict: Verdict) -> Verdict:
        self.counts[verdict] += 1
        return verdict
