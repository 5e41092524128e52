"""Small prepared files for the mathematics environments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashreinforce_molt.data.prompts import PYTHON_TOOL, math_prompt, tool_prompt


def write_rows(path: Path, numbers: Sequence[int], *, tools: bool = False) -> str:
    """Rows "What is n+1?"; returns the path as options take it."""
    lines = []
    for number in numbers:
        question = f"What is {number}+1?"
        row: dict[str, Any] = {
            "prompt": tool_prompt(question) if tools else math_prompt(question),
            "reward_model": {"ground_truth": str(number + 1), "style": "boxed"},
            "question": question,
        }
        lines.append(json.dumps(row | ({"tools": [PYTHON_TOOL]} if tools else {})))
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)
