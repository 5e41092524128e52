"""The files that preparation writes: rows for our engine and for Molt, and a report of how they came to be."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flashreinforce_molt.data.prompts import PYTHON_TOOL
from flashreinforce_molt.data.selection import Row
from flashreinforce_molt.telemetry.run_directory import write_atomically

STYLE = "boxed"
"""How an answer is given and graded: `reward_model.style` of every mathematics row."""


def write_rows(
    path: Path,
    name: str,
    rows: Sequence[Row],
    prompt_of: Callable[[str], list[dict[str, str]]],
    *,
    with_tools: bool = False,
    style: str = STYLE,
) -> None:
    """Write questions as Molt reads them: datasource, prompt, reward_model, and tools where the model has one."""
    columns: dict[str, Any] = {
        "datasource": [name] * len(rows),
        "prompt": [prompt_of(row.question) for row in rows],
        "reward_model": [{"ground_truth": row.answer, "style": style} for row in rows],
        "prompt_id": [f"{name}-{row.key[:16]}" for row in rows],
        "question": [row.question for row in rows],
    }
    if with_tools:
        columns["tools"] = [[PYTHON_TOOL]] * len(rows)
    write_table(path, pa.table(columns))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a parquet file whole or not at all."""
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue().to_pybytes())


def write_report(folder: Path, report: dict[str, Any]) -> Path:
    """Write how the files of a folder came to be."""
    path = folder / "report.json"
    write_atomically(path, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return path
