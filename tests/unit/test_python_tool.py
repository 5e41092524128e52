"""The Python tool: what the model reads of its calls, what is counted, and that only the final answer is graded."""

import asyncio
import json
from pathlib import Path

import pytest
from math_rows import write_rows

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.environments import Chat, EpisodeLost, Step, make_suite, opened
from flashreinforce_molt.environments.python_tool import FENCED_INSTRUCTION, output_text
from flashreinforce_molt.sandbox import Result, SandboxUnavailable

pytest.importorskip("math_verify", reason="needs the extra [tools]")


def suite_of(tmp_path: Path, **options: object):  # type: ignore[no-untyped-def]
    return make_suite(
        "python_tool", {"path": write_rows(tmp_path / "rows.jsonl", [6], tools=True), **options}
    )


def play(suite, *turns: str) -> list[Step]:  # type: ignore[no-untyped-def]
    """The steps of one episode on "What is 6+1?"."""

    async def episode() -> list[Step]:
        try:
            async with opened(suite):
                environment = suite.environment()
                environment.reset(suite.rows[0])
                try:
                    return [await environment.step(turn) for turn in turns]
                finally:
                    await environment.close()
        except SandboxUnavailable as missing:
            pytest.skip(str(missing))

    return asyncio.run(episode())


def call(code: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>"


def said(step: Step) -> list[str]:
    return [message["content"] for message in step.observation]


def test_calls_run_and_only_the_committed_answer_is_graded(tmp_path: Path) -> None:
    first, second, third, last = play(
        suite_of(tmp_path),
        "I guess \\boxed{7}. " + call("print(6)\nx = 6\nx + 1"),
        call("x"),
        "<tool_call>{</tool_call>" + call("2 + 2"),
        "So it is \\boxed{8}.",
    )
    assert said(first) == ["6\n7"]
    assert "NameError: name 'x' is not defined" in said(second)[0]  # each call has its own interpreter
    assert "no valid JSON" in said(third)[0]
    assert said(third)[1] == "4"
    assert [message["role"] for message in third.observation] == ["tool", "tool"]
    counts = [
        tuple(step.info[name] for name in ("tool_calls", "tool_errors", "malformed_calls"))
        for step in (first, second, third, last)
    ]
    assert counts == [(1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 0, 0)]
    # the box beside a call was no answer; the one that was committed is wrong
    assert [step.reward for step in (first, second, third, last)] == [0.0] * 4
    assert (last.terminated, last.info["failed"], last.info["no_answer"]) == (True, True, False)


def test_an_episode_that_a_limit_ends_between_calls_has_failed_by_label(tmp_path: Path) -> None:
    (step,) = play(suite_of(tmp_path), call("6 + 1"))
    assert not step.terminated
    assert (step.info["failed"], step.info["no_answer"]) == (True, True)


def test_the_calls_of_a_trajectory_may_share_an_interpreter(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, state="trajectory", call_timeout_s=1.0)
    kept, lost, gone, answer = play(
        suite, call("x = 6") + call("x + 1"), call("while True: pass"), call("x"), "\\boxed{7}"
    )
    assert said(kept) == ["(no output: print what you want to see, or end with an expression)", "7"]
    assert "[timeout: " in said(lost)[0]
    assert "earlier names and files are gone" in said(lost)[0]
    assert "NameError" in said(gone)[0]
    assert (answer.reward, answer.info["failed"]) == (1.0, False)


def test_a_turn_makes_no_more_calls_than_the_limit(tmp_path: Path) -> None:
    (step,) = play(suite_of(tmp_path, max_calls=2), call("1") * 2 + "<tool_call>" * 500)
    assert said(step) == ["1", "1", "500 more calls were not run: one turn makes at most 2."]
    assert (step.info["tool_calls"], step.info["malformed_calls"]) == (2, 500)


def test_long_output_is_cut_with_a_note_and_keeps_its_end(tmp_path: Path) -> None:
    (step,) = play(suite_of(tmp_path, output_chars=100), call("print('a' * 5000)\n1 / 0"))
    text = said(step)[0]
    assert text.startswith("aaaa")
    assert "characters left out ...]" in text
    assert text.endswith("division by zero")
    assert len(text) < 150


def test_fenced_blocks_are_an_option_with_an_instruction_of_their_own(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, format="fenced")
    prompt = suite.environment().reset(suite.rows[0])
    assert prompt == [
        {"role": "system", "content": FENCED_INSTRUCTION},
        {"role": "user", "content": "What is 6+1?"},
    ]
    observed, answer = play(suite, "```python\n6 + 1\n```", "\\boxed{7}")
    assert observed.observation == [{"role": "user", "content": "7"}]
    assert answer.reward == 1.0


def test_the_prompt_carries_the_schema_of_the_row_or_ours(tmp_path: Path) -> None:
    with_tools = suite_of(tmp_path)
    bare = make_suite("python_tool", {"path": write_rows(tmp_path / "bare.jsonl", [6])})
    for suite in (with_tools, bare):
        prompt = suite.environment().reset(suite.rows[0])
        assert isinstance(prompt, Chat)
        assert [tool["function"]["name"] for tool in prompt.tools] == ["python"]
        assert prompt.messages == suite.rows[0].data["prompt"]


def test_a_sandbox_that_breaks_loses_the_episode_and_blames_nobody(tmp_path: Path) -> None:
    suite = suite_of(tmp_path)

    class BrokenBox:
        async def run(self, code: str) -> Result:
            return Result("sandbox_error", detail="the sandbox server died")

    suite._box = BrokenBox()
    episode = suite.environment()
    episode.reset(suite.rows[0])
    with pytest.raises(EpisodeLost, match="the sandbox server died") as lost:
        asyncio.run(episode.step(call("1")))
    assert lost.value.reason == "sandbox_error"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (Result("ok", "a\n", value="4"), "a\n4"),
        (Result("ok", stderr="warned\n"), "warned"),
        (Result("ok"), "(no output: print what you want to see, or end with an expression)"),
        (Result("memory", "a\n", detail="used 2 GiB"), "a\n[memory: used 2 GiB]"),
        (Result("error", stderr="Traceback\nE: x\n"), "Traceback\nE: x"),
    ],
)
def test_what_the_model_reads_of_a_result(result: Result, text: str) -> None:
    assert output_text(result, 100) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "xml"}, r"environment.options.format='xml' is not one of tool_call, fenced"),
        ({"state": "global"}, r"environment.options.state='global' is not one of call, trajectory"),
        ({"max_calls": 0}, r"environment.options.max_calls=0 must be at least 1"),
        ({"call_timeout_s": 0}, "Limits.timeout"),
        ({"isolation": "none"}, "Isolation.backend='none' is not one of"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_suite("python_tool", options)
