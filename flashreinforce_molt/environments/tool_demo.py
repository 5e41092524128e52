"""Calculations too long for a small model's head, and a calculator that does one step of them: learnt to be used.

The example to copy for an environment of one's own: tasks by position, held-out tasks, turns, a tool, demonstrations,
and a baseline, all in plain text. A calculation such as `38*4+7>` is read from left to right. The model writes one
action in each turn: `38*4` calls the calculator, which answers `152>`; `=159` commits to an answer and ends the
episode. The reward is 1 for the right answer and 0 for anything else; what is neither ends the episode too.
"""

from __future__ import annotations

import hashlib
import operator
import random
import re
from collections.abc import Sequence

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.environments.base import Demonstration, Step, Task

HELD_OUT_SHARE = 10
"""One calculation in this many belongs to the evaluation."""

_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_CALL = re.compile(r"([0-9]{1,6})([-+*])([0-9]{1,6})")
_EVALUATION_SEED = "held out"


class ToolDemo:
    """Suite of calculations with `least` to `most` operations.

    With `tool: false` calls are malformed and demonstrations answer at once: the baseline without a tool.
    """

    def __init__(self, least: int = 1, most: int = 3, tool: bool = True) -> None:
        if not 1 <= least <= most:
            raise SettingError(
                f"environment.options: least={least} and most={most} must be 1 <= least <= most"
            )
        self.least, self.most, self.tool = least, most, tool

    def training_tasks(self, seed: int) -> _TrainingOrder:
        return _TrainingOrder(self, seed)

    def evaluation_tasks(self, size: int) -> list[Task]:
        """`size` different held-out calculations."""
        tasks: dict[str, Task] = {}
        for position in range(size * HELD_OUT_SHARE * 20):
            if len(tasks) == size:
                break
            task = self.task_at(_EVALUATION_SEED, position)
            if is_held_out(task.prompt_id):
                tasks[task.prompt_id] = task
        if len(tasks) < size:
            raise SettingError(f"evaluation.size={size}: there are not that many held-out calculations")
        return list(tasks.values())

    def task_at(self, seed: int | str, position: int) -> Task:
        """The calculation at a position of an order, held out or not. Its results never fall below 0."""
        rng = random.Random(f"{seed} {position}")
        text = str(rng.randint(11, 99))
        results = [int(text)]
        for _ in range(rng.randint(self.least, self.most)):
            symbol, number = rng.choice("+-*" if results[-1] > 9 else "+*"), rng.randint(2, 9)
            text += f"{symbol}{number}"
            results.append(_OPERATIONS[symbol](results[-1], number))
        return Task(text, {"results": results})

    def environment(self) -> ToolDemoEpisode:
        return ToolDemoEpisode(self.tool)

    def demonstration(self, task: Task, rng: random.Random, correct: bool) -> Demonstration:
        """Every step with the calculator; a wrong one gives up and answers with the first number at once."""
        results = task.data["results"]
        if not correct:
            return Demonstration(f"{task.prompt_id}>", f"={results[0]}")
        steps = re.findall(r"[-+*]\d+", task.prompt_id) if self.tool else []
        calls = [f"{before}{step}" for before, step in zip(results, steps, strict=False)]
        turns = [(call, f"{result}>") for call, result in zip(calls, results[1:], strict=False)]
        return Demonstration(f"{task.prompt_id}>", f"={results[-1]}", turns)

    def constant_answer(self, tasks: Sequence[Task]) -> str:
        """The commonest result: the best that a policy blind to the calculation can do."""
        answers = [str(task.data["results"][-1]) for task in tasks]
        return max(sorted(set(answers)), key=answers.count)

    def is_correct(self, task: Task, answer: str) -> bool:
        return answer == str(task.data["results"][-1])


class ToolDemoEpisode:
    """One calculation."""

    def __init__(self, tool: bool) -> None:
        self.tool = tool
        self.task: Task | None = None

    def reset(self, task: Task) -> str:
        self.task = task
        return f"{task.prompt_id}>"

    async def step(self, action: str) -> Step:
        assert self.task is not None, "step before reset"
        if action.startswith("="):
            failed = action != f"={self.task.data['results'][-1]}"
            return Step(None, float(not failed), True, info=_info(failed=failed))
        call = _CALL.fullmatch(action) if self.tool else None
        if call is None:
            return Step(None, 0.0, True, info=_info(failed=True, malformed_calls=1))
        result = _OPERATIONS[call[2]](int(call[1]), int(call[3]))
        # An episode that a limit ends here has given no answer, so it failed.
        return Step(f"{result}>", 0.0, False, info=_info(failed=True, tool_calls=1))

    async def close(self) -> None:
        self.task = None


class _TrainingOrder:
    """The calculation at every position: the first of its stretch that is not held out."""

    _STRETCH = 16

    def __init__(self, suite: ToolDemo, seed: int) -> None:
        self.suite, self.seed = suite, seed

    def __getitem__(self, position: int) -> Task:
        candidates = (
            self.suite.task_at(self.seed, position * self._STRETCH + offset)
            for offset in range(self._STRETCH)
        )
        return next(task for task in candidates if not is_held_out(task.prompt_id))


def is_held_out(calculation: str) -> bool:
    """Whether a calculation belongs to the evaluation; depends on its text alone."""
    return int.from_bytes(hashlib.sha256(calculation.encode()).digest()[:8], "big") % HELD_OUT_SHARE == 0


def _info(*, failed: bool, tool_calls: int = 0, malformed_calls: int = 0) -> dict[str, int | bool]:
    return {"failed": failed, "tool_calls": tool_calls, "malformed_calls": malformed_calls}
