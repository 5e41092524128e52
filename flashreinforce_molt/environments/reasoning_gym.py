"""Any procedural data set of reasoning-gym, judged by that library's own scorer.

Questions are split by a hash into a training and a held-out part. Seeds alone do not separate them: the
library seeds item i with seed + i, and sets such as `spell_backward` draw from a finite list of words.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.environments.base import Demonstration, EpisodeLost, Step, Task, Text
from flashreinforce_molt.graders import GradingError, GradingPool, GradingTimeout

HELD_OUT_SHARE = 10
"""One question in this many belongs to the evaluation."""

_VIRTUAL_SIZE = 10**9
_EVALUATION_SEED = 900_000_000_000


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the evaluation; depends on its text (case folded) alone."""
    digest = hashlib.sha256(" ".join(question.lower().split()).encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


class ReasoningGym:
    """Suite over one data set.

    Options: `dataset` (a name of reasoning-gym), `parameters` (its own configuration), `template` (the prompt;
    may use {question} and every field of the item's metadata), `lowercase` (of the prompt), `chat` (pose it as a
    chat message), `shots` (solved examples before it), `instruction` (system message or first line),
    `grade_in_pool` (score in a process that is killed after `grader_timeout_s`).

    The pool is off by default: most scorers compare text in microseconds, where the way to another process costs
    more than the score. Switch it on for the scorers that parse or evaluate what the model wrote, such as those of
    symbolic algebra and of code: one such answer may hang, or take a worker's memory with it.
    """

    def __init__(
        self,
        dataset: str,
        parameters: Mapping[str, Any] | None = None,
        template: str = "{question}",
        lowercase: bool = False,
        chat: bool = False,
        shots: int = 0,
        instruction: str = "",
        grade_in_pool: bool = False,
        grader_timeout_s: float = 3.0,
    ) -> None:
        import reasoning_gym

        self._create = reasoning_gym.create_dataset
        self.dataset, self.parameters = dataset, dict(parameters or {})
        self.template, self.lowercase, self.chat = template, lowercase, chat
        self.shots, self.instruction = shots, instruction
        self.grade_in_pool, self.grader_timeout_s = grade_in_pool, grader_timeout_s
        self._pool: GradingPool | None = None
        self._scorer = self._data(seed=0, size=1)
        try:
            self._prompt(self._scorer[0])
        except (KeyError, IndexError) as error:
            names = ["question", *self._scorer[0]["metadata"]]
            raise SettingError(
                f"environment.options.template={template!r} names the unknown field {error}; known: {', '.join(names)}"
            ) from error
        self._examples = self._solved_examples() if shots else []

    def training_tasks(self, seed: int) -> _TrainingOrder:
        return _TrainingOrder(self._data(seed=seed * _VIRTUAL_SIZE + 1, size=_VIRTUAL_SIZE), self.task_of)

    def evaluation_tasks(self, size: int) -> list[Task]:
        """`size` different held-out questions.

        Raises SettingError when the data set does not hold that many.
        """
        items = self._data(seed=_EVALUATION_SEED, size=_VIRTUAL_SIZE)
        seen: set[str] = set()
        tasks: list[Task] = []
        for position in range(size * HELD_OUT_SHARE * 20):
            if len(tasks) == size:
                break
            item = items[position]
            key = item["question"].lower()
            if is_held_out(key) and key not in seen:
                seen.add(key)
                tasks.append(self.task_of(item))
        if len(tasks) < size:
            raise SettingError(
                f"evaluation.size={size}: {self.dataset} yields only {len(tasks)} held-out questions; use a smaller size"
            )
        return tasks

    async def open(self) -> None:
        if self.grade_in_pool:
            self._pool = GradingPool(workers=1, timeout=self.grader_timeout_s, preload=["reasoning_gym"])
            await self._pool.__aenter__()

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.__aexit__()

    def environment(self) -> ReasoningGymEpisode:
        return ReasoningGymEpisode(self)

    def demonstration(self, task: Task, rng: random.Random, correct: bool) -> Demonstration:
        """The right answer, or a plausible wrong one: the answer's characters in another order."""
        item = task.data["item"]
        answer = self._case(str(item["answer"]))
        if not correct:
            word = answer[::-1]
            answer = rng.choice([word, "".join(sorted(word)), word[1:] + word[:1]])
        return Demonstration(task.data["prompt"], answer)

    def constant_answer(self, tasks: Sequence[Task]) -> str:
        """The answer that is right for most tasks: the best that a policy blind to the prompt can do."""
        answers = [self._case(str(task.data["item"]["answer"])) for task in tasks]
        return max(sorted(set(answers)), key=answers.count)

    def is_correct(self, task: Task, answer: str) -> bool:
        """Whether the library's scorer gives the full score. Partial credit is never counted."""
        return self._scorer.score_answer(answer, dict(task.data["item"])) == 1.0

    async def judge(self, task: Task, answer: str) -> bool:
        """`is_correct`, in the pool where one was asked for. Raises EpisodeLost when the pool has no verdict."""
        if not self.grade_in_pool:
            return self.is_correct(task, answer)
        if self._pool is None:
            raise RuntimeError("the suite is not open: use `async with opened(suite)`")
        try:
            score = await self._pool.call(
                _score, self.dataset, self.parameters, answer, dict(task.data["item"])
            )
        except GradingTimeout as error:
            raise EpisodeLost("grader_timeout", str(error)) from error
        except GradingError as error:
            raise EpisodeLost("grader_error", str(error)) from error
        return score == 1.0

    def task_of(self, item: dict[str, Any]) -> Task:
        """The task that poses one item of the data set."""
        question = item["question"].encode()
        prompt_id = f"{self.dataset}-{hashlib.sha256(question).hexdigest()[:16]}"
        return Task(prompt_id, {"item": item, "prompt": self._prompt(item)})

    def _data(self, *, seed: int, size: int) -> Any:
        try:
            return self._create(self.dataset, seed=seed, size=size, **self.parameters)
        except (ValueError, TypeError, AssertionError) as error:
            raise SettingError(
                f"environment.options: reasoning-gym refuses {self.dataset!r} with {self.parameters}: {error}"
            ) from error

    def _case(self, text: str) -> str:
        return text.lower() if self.lowercase else text

    def _prompt(self, item: dict[str, Any]) -> Text:
        text = self._case(self.template.format(**{**item["metadata"], "question": item["question"]}))
        if not self.chat:
            return text
        messages = [{"role": "system", "content": self.instruction}] if self.instruction else []
        for question, answer in getattr(self, "_examples", []):
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return [*messages, {"role": "user", "content": text}]

    def _solved_examples(self) -> list[tuple[str, str]]:
        order = _TrainingOrder(self._data(seed=2 * _EVALUATION_SEED, size=_VIRTUAL_SIZE), lambda item: item)
        items = [order[position] for position in range(self.shots)]
        return [
            (
                self._case(self.template.format(**{**item["metadata"], "question": item["question"]})),
                self._case(str(item["answer"])),
            )
            for item in items
        ]


class _TrainingOrder:
    """Training questions by position: each position looks at its own stretch of the data set."""

    _STRETCH = 64

    def __init__(self, items: Any, make: Callable[[dict[str, Any]], Any]) -> None:
        self.items, self.make = items, make

    def __getitem__(self, position: int) -> Any:
        for offset in range(self._STRETCH):
            item = self.items[position * self._STRETCH + offset]
            if not is_held_out(item["question"]):
                return self.make(item)
        raise SettingError(
            "environment.options: 64 items in a row are held out; the data set has too few questions"
        )


class ReasoningGymEpisode:
    """One question, one answer."""

    def __init__(self, suite: ReasoningGym) -> None:
        self.suite = suite
        self.task: Task | None = None

    def reset(self, task: Task) -> Text:
        self.task = task
        return task.data["prompt"]

    async def step(self, action: str) -> Step:
        assert self.task is not None, "step before reset"
        correct = await self.suite.judge(self.task, action)
        return Step(None, float(correct), True, info={"failed": not correct})

    async def close(self) -> None:
        self.task = None


def _score(dataset: str, parameters: dict[str, Any], answer: str, item: dict[str, Any]) -> float:
    """Runs in a grading process."""
    return float(_data_set(dataset, json.dumps(parameters)).score_answer(answer, item))


@lru_cache(maxsize=1)
def _data_set(dataset: str, parameters: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(dataset, seed=0, size=1, **json.loads(parameters))
