"""Mathematics problems with a Python tool: calls run in the sandbox, and only the final answer is graded.

A turn that makes a call goes on; the first turn without one is the answer, and ends the episode.
"""

from __future__ import annotations

from collections.abc import Sequence

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.data.prompts import PYTHON_TOOL
from flashreinforce_molt.environments.base import Chat, Environment, EpisodeLost, Message, Step, Task, Text
from flashreinforce_molt.environments.math import Math
from flashreinforce_molt.environments.tool_calls import Call, fenced_calls, json_calls, shortened
from flashreinforce_molt.sandbox import Isolation, Limits, PythonSandbox, Result, Session

FENCED_INSTRUCTION = (
    "Solve the problem. You may run Python as often as you need to compute or to check something: write a block that "
    "begins with ```python and ends with ```, then stop; its output and the value of its last expression come back. "
    "When you are sure, put your final answer within \\boxed{} and write no further block."
)

_NO_OUTPUT = "(no output: print what you want to see, or end with an expression)"
_STATE_LOST = "[the interpreter was started again: earlier names and files are gone]"


class PythonTool(Math):
    """Suite over the rows that `flashreinforce-molt prepare tools` writes.

    Options: those of `math`; `format` ("tool_call": JSON as Qwen2.5 and Qwen3 write it, with the tool's schema in the
    prompt; "fenced": blocks of ```python), `state` ("call": each call has an interpreter of its own; "trajectory":
    the calls of an episode share one), `call_timeout_s`, `max_calls` (in one turn), `output_chars` (of one call, shown
    to the model), `memory_mb` (of one call), `concurrency` (calls that run at once in each rollout worker; null: one
    per processor), `isolation` (backend of the sandbox).
    """

    def __init__(
        self,
        path: str | None = None,
        evaluation_path: str | Sequence[str] = (),
        max_rows: int | None = None,
        graders: int = 1,
        grader_timeout_s: float = 3.0,
        format: str = "tool_call",
        state: str = "call",
        call_timeout_s: float = 5.0,
        max_calls: int = 4,
        output_chars: int = 1000,
        memory_mb: int = 1024,
        concurrency: int | None = None,
        isolation: str = "namespaces",
    ) -> None:
        super().__init__(path, evaluation_path, max_rows, graders, grader_timeout_s)
        for name, value, known in (
            ("format", format, ("tool_call", "fenced")),
            ("state", state, ("call", "trajectory")),
        ):
            if value not in known:
                raise SettingError(f"environment.options.{name}={value!r} is not one of {', '.join(known)}")
        for name, number in (("max_calls", max_calls), ("output_chars", output_chars)):
            if number < 1:
                raise SettingError(f"environment.options.{name}={number} must be at least 1")
        self.format, self.state = format, state
        self.max_calls, self.output_chars, self.concurrency = max_calls, output_chars, concurrency
        try:
            self.limits = Limits(timeout=float(call_timeout_s), memory_bytes=memory_mb << 20)
            self.isolation = Isolation(isolation)
        except (ValueError, TypeError) as error:
            raise SettingError(f"environment.options: the sandbox refuses {error}") from error
        self._box: PythonSandbox | None = None

    def environment(self) -> Environment:
        return PythonToolEpisode(self)

    async def open(self) -> None:
        await super().open()
        self._box = PythonSandbox(self.isolation, self.limits, concurrency=self.concurrency, sessions=100_000)
        await self._box.start()

    async def close(self) -> None:
        box, self._box = self._box, None
        try:
            if box is not None:
                await box.close()
        finally:
            await super().close()

    @property
    def box(self) -> PythonSandbox:
        if self._box is None:
            raise RuntimeError("the suite is not open: use `async with opened(suite)`")
        return self._box

    def calls_of(self, turn: str) -> list[Call]:
        """The calls that a turn makes, malformed ones included."""
        if self.format == "fenced":
            return fenced_calls(turn)
        return json_calls(turn, PYTHON_TOOL["function"]["name"])

    def prompt_of(self, task: Task) -> Text:
        """The row's messages with the tool's schema, or with our instruction where the format knows no schemas."""
        messages: list[Message] = task.data["prompt"]
        if self.format == "fenced":
            asked = [message for message in messages if message["role"] != "system"]
            return [{"role": "system", "content": FENCED_INSTRUCTION}, *asked]
        return Chat(messages, task.data.get("tools") or [PYTHON_TOOL])


class PythonToolEpisode:
    """One problem: calls, and an answer."""

    def __init__(self, suite: PythonTool) -> None:
        self.suite = suite
        self.task: Task | None = None
        self.session: Session | None = None

    def reset(self, task: Task) -> Text:
        self.task = task
        return self.suite.prompt_of(task)

    async def step(self, action: str) -> Step:
        assert self.task is not None, "step before reset"
        counts = {"tool_calls": 0, "tool_errors": 0, "malformed_calls": 0}
        calls = self.suite.calls_of(action)
        if not calls:
            step = await self.suite.judge(self.task, action)
            return step._replace(info={**step.info, **counts})
        answers = [await self._answer(call, counts) for call in calls[: self.suite.max_calls]]
        if unread := len(calls) - len(answers):
            counts["malformed_calls"] += unread
            answers.append(
                f"{unread} more calls were not run: one turn makes at most {self.suite.max_calls}."
            )
        role = "user" if self.suite.format == "fenced" else "tool"
        observation = [{"role": role, "content": answer} for answer in answers]
        # An episode that a limit ends here has given no answer, so it failed.
        return Step(observation, 0.0, False, info={"failed": True, "no_answer": True, **counts})

    async def close(self) -> None:
        session, self.session, self.task = self.session, None, None
        if session is not None:
            await session.close()

    async def _answer(self, call: Call, counts: dict[str, int]) -> str:
        if call.complaint:
            counts["malformed_calls"] += 1
            return call.complaint
        result = await self._run(call.code)
        if result.status in ("sandbox_error", "cancelled"):
            raise EpisodeLost("sandbox_error", result.detail or result.status)
        counts["tool_calls"] += 1
        counts["tool_errors"] += not result.ok
        return output_text(result, self.suite.output_chars)

    async def _run(self, code: str) -> Result:
        if self.suite.state == "call":
            return await self.suite.box.run(code)
        if self.session is None:
            self.session = await self.suite.box.session().__aenter__()
        return await self.session.run(code)


def output_text(result: Result, limit: int) -> str:
    """What the model reads of a result: stdout, stderr, the value of the last expression, and which limit ended it."""
    parts = [result.stdout, result.stderr, result.value or ""]
    text = shortened("\n".join(part.rstrip() for part in parts if part.strip()), limit)
    notes = []
    if result.status not in ("ok", "error"):
        notes.append(f"[{result.status}: {result.detail}]")
    if result.state_lost:
        notes.append(_STATE_LOST)
    return "\n".join(part for part in (text, *notes) if part) or _NO_OUTPUT
