"""Lines of styled text: wrapped into columns here, coloured by rich in a terminal, plain everywhere else."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

Span = tuple[str, str]
"""Text and the name of its style, empty for none."""
Line = list[Span]

STYLES = {
    "title": "bold",
    "heading": "bold cyan",
    "value": "bold",
    "source": "dim",
    "changed": "yellow",
    "ours": "magenta",
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
}
PLAIN_WIDTH = 120


def counted(number: int, what: str) -> str:
    """`1 machine`, `3 machines`."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def heading(text: str) -> list[Line]:
    """A blank line and a section's name."""
    return [[], [(text.upper(), "heading")]]


def paragraph(
    text: str, width: int, *, indent: str = "  ", hanging: str | None = None, style: str = ""
) -> list[Line]:
    """Wrapped text; `hanging` indents all lines but the first."""
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [[(line, style)] for line in lines]


def columns(rows: Sequence[Sequence[Span]], widths: Sequence[int], width: int) -> list[Line]:
    """Rows of cells below each other: the last cell wraps, and a cell that is too wide moves the rest down a line."""
    lines: list[Line] = []
    offset = sum(widths) + 2 * len(widths)
    for *cells, (last, last_style) in rows:
        line: Line = []
        start = 0
        for (text, style), space in zip(cells, widths, strict=True):
            *whole, rest = _wrapped(text, max(space, width - start))
            for part in whole:
                lines.append([*line, (part, style)])
                line = [(" " * start, "")]
            line.append((rest.ljust(space) + "  ", style))
            start += space + 2
        wrapped = _wrapped(last, max(24, width - offset))
        if sum(len(text) for text, _ in line) <= offset:
            line.append((wrapped.pop(0), last_style))
        lines.append(line)
        lines += [[(" " * offset + rest, last_style)] for rest in wrapped]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of `text`; its own spaces stay where it fits into one."""
    return [text] if len(text) <= width else textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def plain(lines: Iterable[Line]) -> str:
    """The text without styles, and without blanks at the ends of lines."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def width_of(stream: TextIO) -> int:
    """Columns to fill: the terminal's, or a fixed number, so that a file is the same everywhere."""
    return max(80, shutil.get_terminal_size().columns) if stream.isatty() else PLAIN_WIDTH


def emit(lines: Iterable[Line], stream: TextIO | None = None) -> None:
    """Print with colours in a terminal, plain otherwise."""
    stream = stream or sys.stdout
    if not stream.isatty():
        stream.write(plain(lines))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for line in lines:
        text = Text.assemble(*[(text, STYLES.get(style, "")) for text, style in line])
        console.print(text, soft_wrap=True)
