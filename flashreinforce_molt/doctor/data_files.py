"""Prepared data files: present, with the right columns and the right number of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from flashreinforce_molt.config.schema import Config, DataConfig


def wanted_files(config: Config) -> Iterator[tuple[str, int | None]]:
    """Path and rows of every file that the recipe reads."""
    if config.data.path is not None:
        yield config.data.path, config.data.rows
    for suite in config.evaluation.suites.values():
        if isinstance(suite, dict) and isinstance(suite.get("path"), str):
            yield suite["path"], suite.get("rows")


def data_problem(path: Path, data: DataConfig, rows: int | None) -> str | None:
    """What is wrong with a prepared file, or None."""
    if not path.is_file():
        return "is missing"
    try:
        columns, found = _parquet(path) if path.suffix == ".parquet" else _json_lines(path)
    except ImportError:
        return "cannot be checked without pyarrow; pip install -e '.[tools]'"
    except Exception as error:  # a damaged file may fail anywhere inside pyarrow, with errors of many kinds
        return f"cannot be read ({(str(error).splitlines() or [type(error).__name__])[0][:300]})"
    wanted = (data.prompt_key, data.label_key, data.tools_key)
    missing = [key for key in wanted if key is not None and key not in columns]
    if missing:
        return f"has no column {' or '.join(missing)}, but {', '.join(columns)}"
    if rows is not None and found != rows:
        return f"has {found:,} rows instead of {rows:,}"
    return None


def _parquet(path: Path) -> tuple[list[str], int]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path)
    return list(file.schema_arrow.names), file.metadata.num_rows


def _json_lines(path: Path) -> tuple[list[str], int]:
    with path.open(encoding="utf-8") as stream:
        first = json.loads(stream.readline())
        if not isinstance(first, dict):
            raise ValueError("a line is no JSON object")
        return list(first), 1 + sum(1 for line in stream if line.strip())
