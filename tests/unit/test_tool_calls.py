"""Reading tool calls out of what a model writes: every malformed one gets a message that helps."""

import json
import time

import pytest

from flashreinforce_molt.environments.tool_calls import Call, fenced_calls, json_calls, shortened


def call(code: object = "print(1)", name: object = "python") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': {'code': code}})}\n</tool_call>"


@pytest.mark.parametrize(
    ("turn", "codes"),
    [
        ("the answer is \\boxed{4}", []),
        ("", []),
        ("Let me compute.\n" + call("x = 1\nprint(x)"), ["x = 1\nprint(x)"]),
        (call("a") + "\n" + call("b"), ["a", "b"]),
        ('<tool_call>{"name": "python", "arguments": "{\\"code\\": \\"1+1\\"}"}</tool_call>', ["1+1"]),
        # line breaks inside the string, as models write them
        (
            '<tool_call>{"name": "python", "arguments": {"code": "a = 1\nprint(a)"}}</tool_call>',
            ["a = 1\nprint(a)"],
        ),
        (f"<think>perhaps {call('no')}</think>{call('yes')}", ["yes"]),
        (f"<think>perhaps {call('no')}</think> \\boxed{{1}}", []),
        (call('print("<b>")') + " thanks", ['print("<b>")']),
    ],
)
def test_well_formed_calls(turn: str, codes: list[str]) -> None:
    assert json_calls(turn, "python") == [Call(code) for code in codes]


@pytest.mark.parametrize(
    ("turn", "complaint"),
    [
        ('<tool_call>{"name": "python", "arguments": {"code": "1"}}', "never ends: </tool_call> is missing"),
        ('{"name": "python"}</tool_call>', "</tool_call> has no <tool_call> before it"),
        ("<tool_call>print(1)</tool_call>", "no valid JSON (Expecting value: line 1 column 1"),
        ("<tool_call>{'name': 'python'}</tool_call>", "no valid JSON"),
        ("<tool_call>[1]</tool_call>", "must be an object with name and arguments"),
        ('<tool_call>{"name": "python"}</tool_call>', "must be an object with name and arguments"),
        (
            '<tool_call>{"name": "python", "arguments": "1"}</tool_call>',
            "must be an object with name and arguments",
        ),
        ('<tool_call>{"name": "python", "arguments": "{"}</tool_call>', "no valid JSON"),
        (call(name="search"), "There is no tool 'search'; the only one is 'python'"),
        (call(name=None), "There is no tool 'None'"),
        (call(code=3), "code must be Python code as text"),
        (call(code="  \n"), "code must be Python code as text"),
        (
            '<tool_call>{"name": "python", "arguments": {"script": "1"}}</tool_call>',
            "code must be Python code",
        ),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "no valid JSON"),
        ("<tool_call>" + "9" * 10_000 + "</tool_call>", "no valid JSON"),
    ],
)
def test_a_malformed_call_gets_a_message_that_helps(turn: str, complaint: str) -> None:
    (found,) = json_calls(turn, "python")
    assert found.code == ""
    assert complaint in found.complaint
    assert 'Write it like this: <tool_call>{"name": "python"' in found.complaint


def test_the_example_in_a_complaint_is_a_call_itself() -> None:
    (found,) = json_calls("<tool_call>", "python")
    assert json_calls(found.complaint.partition("Write it like this: ")[2], "python") == [
        Call("print(6 * 7)")
    ]


@pytest.mark.parametrize(
    ("turn", "calls"),
    [
        ("\\boxed{4}", []),
        ("```latex\nx\n```", []),
        ("First:\n```python\nprint(1)\n```\n", [Call("print(1)\n")]),
        ("```py\na\n```\nand\n  ```python\nb\n  ```", [Call("a\n"), Call("b\n")]),
        ("<think>```python\nno\n```</think>```python\nyes\n```", [Call("yes\n")]),
    ],
)
def test_fenced_blocks_are_calls(turn: str, calls: list[Call]) -> None:
    assert fenced_calls(turn) == calls


@pytest.mark.parametrize(
    ("turn", "complaint"), [("```python\nprint(1)", "never ends"), ("```python\n \n```", "is empty")]
)
def test_malformed_fenced_blocks_are_named(turn: str, complaint: str) -> None:
    (found,) = fenced_calls(turn)
    assert complaint in found.complaint


@pytest.mark.parametrize(
    "piece", ["<tool_call>", "</tool_call>", "```python\n", "```python\n```\n", "<think>", "{"]
)
def test_reading_takes_linear_time_whatever_the_text(piece: str) -> None:
    began = time.monotonic()
    json_calls(piece * 20_000, "python")
    fenced_calls(piece * 20_000)
    assert time.monotonic() - began < 2


def test_long_output_keeps_its_beginning_and_its_end_and_says_what_is_missing() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("a" * 50 + "z" * 51, 10) == "aaaaa\n[... 91 characters left out ...]\nzzzzz"
    assert shortened("abc", 1) == "\n[... 2 characters left out ...]\nc"
