"""Tasks as rows of a training file that Molt reads: a prompt column and a label column that carries the task whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flashreinforce_molt.environments.base import Task

PROMPT_KEY, LABEL_KEY = "prompt", "task"
"""Columns of `write_task_rows`, for `--data.input_key` and `--data.label_key`."""


def write_task_rows(tasks: Iterable[Task], path: str | os.PathLike[str]) -> int:
    """Write one JSON line per task and return their number.

    The prompt column only names the task: the environment poses it when the episode starts.
    """
    rows = [
        {PROMPT_KEY: [{"role": "user", "content": task.prompt_id}], LABEL_KEY: task_label(task)}
        for task in tasks
    ]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def task_label(task: Task) -> str:
    """The label of the row that poses `task`."""
    return json.dumps({"prompt_id": task.prompt_id, "data": dict(task.data)})


def task_of(prompt: Any, label: Any, tools: Any = None) -> Task:
    """The task behind a row of Molt's data set.

    A label written by `task_label` carries it whole. Any other label is the row's reference: its fields, or the
    field `answer`, beside the prompt and the row's tools.
    """
    if isinstance(label, str):
        try:
            found = json.loads(label)
        except json.JSONDecodeError:
            found = None
        if isinstance(found, dict) and found.keys() == {"prompt_id", "data"}:
            return Task(found["prompt_id"], found["data"])
    data = dict(label) if isinstance(label, Mapping) else {"answer": label}
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    shown = {"tools": tools} if tools else {}
    return Task(hashlib.sha256(text.encode()).hexdigest()[:16], {"prompt": prompt, **shown, **data})
