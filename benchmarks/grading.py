"""Right verdicts and costs of the grader, with math-verify alone beside it.

    python benchmarks/grading.py

The pairs are those of `tests/unit/answer_pairs.py`, each graded both ways round. math-verify alone reads the whole
response and gold in its documented way (`parse` and `verify` with their own time limits, in the main thread).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flashreinforce_molt.graders import MathGrader

TESTS = Path(__file__).resolve().parents[1] / "tests"
HOSTILE = ("9^{9^{9^9}}", "99999999!", "(" * 190 + "1" + ")" * 190, "(x+y+z+w)^{300}", r"\{" * 300)
COSTS = {
    "same text": ("7", "7"),
    "exact numbers": (r"\frac{3}{4}", "0.75"),
    "words": (r"\text{Tuesday}", "Monday"),
    "sets of numbers": (r"\{1,2,3\}", "3,2,1"),
    "algebra": (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    "interval and inequality": ("[1,2)", r"1 \le x < 2"),
}


def response_of(answer: str) -> str:
    return rf"So the answer is \boxed{{{answer}}}."


def pairs() -> Iterator[tuple[str, str, str, bool]]:
    spec = importlib.util.spec_from_file_location("answer_pairs", TESTS / "unit" / "answer_pairs.py")
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    for prefix, kinds, equal in (("", table.EQUAL, True), ("not equal: ", table.UNEQUAL, False)):
        for kind, entries in kinds.items():
            for gold, answer in entries:
                yield prefix + kind, gold, answer, equal
                yield prefix + kind, answer, gold, equal


def alone(gold: str, response: str) -> bool:
    from math_verify import parse, verify

    with contextlib.suppress(Exception):
        return bool(verify(parse(f"${gold}$"), parse(response)))
    return False


async def verdict_table(grader: MathGrader) -> None:
    print("| pairs | number | right here | right by math-verify alone | correct where it is wrong, alone |")
    print("|---|---|---|---|---|")
    total = [0, 0, 0, 0]
    kinds: dict[str, list[int]] = {}
    for kind, gold, answer, equal in pairs():
        ours = await grader.grade(response_of(answer), gold) == ("correct" if equal else "wrong")
        theirs = alone(gold, response_of(answer))
        row = kinds.setdefault(kind, [0, 0, 0, 0])
        for counts in (row, total):
            counts[0] += 1
            counts[1] += ours
            counts[2] += theirs == equal
            counts[3] += theirs and not equal
    for kind, row in [*kinds.items(), ("**all**", total)]:
        print(f"| {kind} | " + " | ".join(map(str, row)) + " |")


async def cost_table(grader: MathGrader) -> None:
    print(
        "\n| a pair of | median, ms | 95th percentile, ms | math-verify alone, median, ms |\n|---|---|---|---|"
    )
    for name, (gold, answer) in COSTS.items():
        response = response_of(answer)
        times = []
        for _ in range(200):
            before = time.perf_counter()
            await grader.grade(response, gold)
            times.append(1e3 * (time.perf_counter() - before))
        stock = median_ms(lambda gold=gold, response=response: alone(gold, response), 50)
        times.sort()
        print(
            f"| {name} | {statistics.median(times):.2f} | {times[math.ceil(0.95 * len(times)) - 1]:.2f} | {stock:.2f} |"
        )


def median_ms(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - before))
    return statistics.median(taken)


async def hostile_table(grader: MathGrader) -> None:
    limit = grader.pool.timeout
    print(
        f"\n| hostile answer | verdict | s (limit {limit:g}) | math-verify alone | s |\n|---|---|---|---|---|"
    )
    for answer in HOSTILE:
        before = time.perf_counter()
        verdict = await grader.grade(response_of(answer), "2")
        took = time.perf_counter() - before
        before = time.perf_counter()
        stock = alone("2", response_of(answer))
        print(
            f"| `{answer[:24]}`{' ...' if len(answer) > 24 else ''} | {verdict} | {took:.2f} | "
            f"{'correct' if stock else 'wrong'} | {time.perf_counter() - before:.2f} |"
        )
    before = time.perf_counter()
    hostile = [asyncio.ensure_future(grader.grade(response_of(HOSTILE[0]), "2"))]
    easy = await asyncio.gather(*(grader.grade(response_of(f"x+{n}"), f"{n}+x") for n in range(500)))
    easy_s = time.perf_counter() - before
    verdicts = await asyncio.gather(*hostile)
    print(
        f"\n500 easy answers that need algebra, beside a hostile one on {len(grader.pool._threads)} workers: "
        f"{easy.count('correct')} correct in {easy_s:.1f} s; the hostile one: {verdicts[0]}."
    )


async def main() -> None:
    logging.disable(logging.CRITICAL)
    before = time.perf_counter()
    async with MathGrader(timeout=3.0) as grader:
        await grader.grade(response_of("x+1"), "1+x")
        print(f"Workers ready after {time.perf_counter() - before:.1f} s.\n")
        async with MathGrader(timeout=60.0) as patient:  # verdicts do not depend on the load of the machine
            await verdict_table(patient)
        await cost_table(grader)
        await hostile_table(grader)
        print(f"\nCounted: {grader.counts}.")


if __name__ == "__main__":
    asyncio.run(main())
