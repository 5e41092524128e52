r"""Mathematics problems out of a prepared file, answered in one turn inside `\boxed{}`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cached_property

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.data import DataError, PreparedRows, TrainingOrder
from flashreinforce_molt.environments.base import Environment, EpisodeLost, Step, Task, TaskSource, Text
from flashreinforce_molt.graders import MathGrader


class Math:
    """Suite over the rows that `flashreinforce-molt prepare` writes.

    Options: `path` of the training file (set by `data.path`), `evaluation_path` of one or several held-out files (set
    by `evaluation.suites`), `max_rows` (only the first so many of the training file; set by `data.max_rows`),
    `graders` (grading processes of each rollout worker), `grader_timeout_s` (for one answer).
    """

    def __init__(
        self,
        path: str | None = None,
        evaluation_path: str | Sequence[str] = (),
        max_rows: int | None = None,
        graders: int = 1,
        grader_timeout_s: float = 3.0,
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise SettingError("this environment grades with math-verify: pip install -e '.[tools]'")
        self.path, self.max_rows = path, max_rows
        self.evaluation_paths = [evaluation_path] if isinstance(evaluation_path, str) else [*evaluation_path]
        self.graders, self.grader_timeout_s = graders, grader_timeout_s
        self._grader: MathGrader | None = None

    @cached_property
    def rows(self) -> Sequence[Task]:
        """The training file."""
        if self.path is None:
            raise SettingError("data.path is empty: this environment reads its tasks from a prepared file")
        rows = _read(self.path, "data.path")
        return rows if self.max_rows is None else rows[: self.max_rows]

    def training_tasks(self, seed: int) -> TaskSource:
        return TrainingOrder(self.rows, seed)

    def evaluation_tasks(self, size: int) -> list[Task]:
        """`size` rows, spread evenly over the held-out files.

        Raises SettingError when they hold fewer, or a question that is trained on.
        """
        if not self.evaluation_paths:
            raise SettingError(
                f"evaluation.size={size} needs held-out questions: name their files in evaluation.suites or in "
                "environment.options.evaluation_path, or set evaluation.size=0"
            )
        rows = [row for path in self.evaluation_paths for row in _read(path, "evaluation_path")]
        if size > len(rows):
            raise SettingError(f"evaluation.size={size}: the held-out files hold only {len(rows)} questions")
        held_out = {row.data["question"] for row in rows}
        if shared := held_out.intersection(row.data["question"] for row in self.rows):
            raise SettingError(
                f"{len(shared)} held-out questions are in the training file {self.path} too, such as {min(shared)!r}"
            )
        return [rows[place * len(rows) // size] for place in range(size)]

    def environment(self) -> Environment:
        return MathEpisode(self)

    async def open(self) -> None:
        self._grader = MathGrader(workers=self.graders, timeout=self.grader_timeout_s)
        await self._grader.__aenter__()

    async def close(self) -> None:
        grader, self._grader = self._grader, None
        if grader is not None:
            await grader.__aexit__()

    async def judge(self, task: Task, response: str) -> Step:
        """The step that ends an episode with this response; raises EpisodeLost when there is no verdict on it."""
        if self._grader is None:
            raise RuntimeError("the suite is not open: use `async with opened(suite)`")
        verdict = await self._grader.grade(response, gold_of(task))
        if verdict in ("timeout", "error"):
            limit = f"no verdict within {self.grader_timeout_s:g} s"
            raise EpisodeLost(
                f"grader_{verdict}", limit if verdict == "timeout" else str(self._grader.last_error)
            )
        failed = verdict != "correct"
        info = {"failed": failed, "no_answer": verdict == "no_answer"}
        return Step(None, float(not failed), True, info=info)


class MathEpisode:
    """One problem, one answer."""

    def __init__(self, suite: Math) -> None:
        self.suite = suite
        self.task: Task | None = None

    def reset(self, task: Task) -> Text:
        self.task = task
        return task.data["prompt"]

    async def step(self, action: str) -> Step:
        assert self.task is not None, "step before reset"
        return await self.suite.judge(self.task, action)

    async def close(self) -> None:
        self.task = None


def gold_of(task: Task) -> str:
    """The right answer: of a row of ours, or of the same row as Molt hands it on."""
    return str(task.data["gold"] if "gold" in task.data else task.data["ground_truth"])


def _read(path: str, setting: str) -> PreparedRows:
    try:
        return PreparedRows(path)
    except DataError as error:
        raise SettingError(f"{setting}: {error}") from error
