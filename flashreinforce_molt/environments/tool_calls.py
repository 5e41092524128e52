"""The tool calls of a turn, and the text that a tool answers with. What a model writes never raises here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FENCE = re.compile(r"^[ \t]*```(?:python|py)[ \t]*\n(.*?)(^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Call:
    """One call; `complaint` tells the model why a malformed one was not run."""

    code: str = ""
    complaint: str = ""


def json_calls(turn: str, tool: str) -> list[Call]:
    """Calls as the templates of Qwen2.5 and Qwen3 teach them: JSON between <tool_call> and </tool_call>.

    Calls that a model only thinks about, before </think>, are none.
    """
    before, *bodies = turn.rpartition("</think>")[2].split(_OPEN)
    calls = [_json_call(body, tool) for body in bodies]
    if _CLOSE in before:
        calls.insert(0, Call(complaint=f"{_CLOSE} has no {_OPEN} before it. {_example(tool)}"))
    return calls


def fenced_calls(turn: str) -> list[Call]:
    """Calls as blocks that begin with ```python and end with ```."""
    calls = []
    for block in _FENCE.finditer(turn.rpartition("</think>")[2]):
        if not block[2]:
            calls.append(Call(complaint="The code block never ends: close it with ``` on a line of its own."))
        elif not block[1].strip():
            calls.append(Call(complaint="The code block is empty."))
        else:
            calls.append(Call(block[1]))
    return calls


def shortened(text: str, limit: int) -> str:
    """`text`, its middle replaced by a note where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - tail :]}"


def _json_call(body: str, tool: str) -> Call:
    text, closed, _ = body.partition(_CLOSE)
    if not closed:
        return Call(complaint=f"The call never ends: {_CLOSE} is missing. {_example(tool)}")
    try:
        said: Any = json.loads(text, strict=False)  # models write line breaks in strings as they are
        if isinstance(said, dict) and isinstance(said.get("arguments"), str):
            said["arguments"] = json.loads(said["arguments"], strict=False)  # as the OpenAI interface has it
    except (ValueError, RecursionError) as error:
        return Call(complaint=f"The call is no valid JSON ({error}). {_example(tool)}")
    if not isinstance(said, dict) or not isinstance(said.get("arguments"), dict):
        return Call(complaint=f"The call must be an object with name and arguments. {_example(tool)}")
    if said.get("name") != tool:
        return Call(
            complaint=f"There is no tool {str(said.get('name'))[:50]!r}; the only one is {tool!r}. {_example(tool)}"
        )
    code = said["arguments"].get("code")
    if not isinstance(code, str) or not code.strip():
        return Call(complaint=f"The argument code must be Python code as text. {_example(tool)}")
    return Call(code)


def _example(tool: str) -> str:
    call = json.dumps({"name": tool, "arguments": {"code": "print(6 * 7)"}})
    return f"Write it like this: {_OPEN}{call}{_CLOSE}"
