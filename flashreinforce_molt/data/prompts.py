"""What a prepared row says to the model. The answer always goes into a box, which the grader reads."""

from __future__ import annotations

from typing import Any

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."

TOOL_INSTRUCTION = (
    "Solve the problem. You may call the tool `python` as often as you need to compute or to check something; each "
    "call runs on its own, and you see what it prints and the value of its last expression. When you are sure, put "
    "your final answer within \\boxed{} and make no further call."
)

PYTHON_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs Python code in a sandbox without network; returns its output and last value.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to run."}},
            "required": ["code"],
        },
    },
}


def math_prompt(question: str) -> list[dict[str, str]]:
    """Messages that pose a question."""
    return [{"role": "user", "content": f"{question}\n\n{BOXED}"}]


def tool_prompt(question: str) -> list[dict[str, str]]:
    """Messages that pose a question to a model with the tool; the schema stands in its own column."""
    return [{"role": "system", "content": TOOL_INSTRUCTION}, {"role": "user", "content": question}]
