"""Reading what others wrote: JSON lines and text, with every mistake named by file and row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashreinforce_molt.data.errors import DataError


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Row number from 0, and the JSON value, of each line that is not blank. Raises DataError."""
    row = 0
    with path.open("rb") as stream:
        for line in stream:
            if line.strip():
                yield row, parsed(line, f"{path} row {row}")
                row += 1


def parsed(text: bytes, where: str) -> Any:
    """The JSON value in `text`; `where` begins the DataError of one that is none."""
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refused)
    except RecursionError:
        raise DataError(f"{where} is no JSON that we read: nested too deeply") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is no UTF-8 text: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise DataError(f"{where} is no JSON: {error}") from None


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def is_text(value: Any) -> bool:
    """Text that says something and that can be written: half a surrogate pair is no character."""
    return isinstance(value, str) and bool(value.strip()) and is_unicode(value)


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded."""
    return not any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else True


def unreadable(path: Path | str, error: BaseException) -> DataError:
    """The DataError for a file that a library could not read."""
    lines = str(error).splitlines() or [type(error).__name__]
    return DataError(f"{path} cannot be read: {lines[0][:300]}")
