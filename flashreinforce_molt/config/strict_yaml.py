"""A small, safe subset of YAML: no tags, no anchors, no duplicate keys, bounded depth, and every text as typed.

Values follow YAML 1.2 (`1e-3` is a number; `on` and `0012` are text), and a scalar keeps its text, so that a commit
such as 1234567 stays text where text is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from flashreinforce_molt.config.errors import SettingError

MAX_DEPTH = 20
NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""What a recipe or a variant may be called."""

_WHOLE_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.?(inf|infinity|nan)", re.IGNORECASE)
_MAX_NUMBER_LENGTH = 60


@dataclass(frozen=True)
class Scalar:
    """A single value; `text` is what was typed, without quotes."""

    text: str
    quoted: bool
    line: int

    @property
    def value(self) -> Any:
        """None, a bool, an int, a float or the text, by the rules of YAML 1.2."""
        if self.quoted:
            return self.text
        if self.text in ("", "~", "null", "Null", "NULL"):
            return None
        if self.text in ("true", "True", "TRUE"):
            return True
        if self.text in ("false", "False", "FALSE"):
            return False
        if len(self.text) <= _MAX_NUMBER_LENGTH:
            if _WHOLE_NUMBER.fullmatch(self.text):
                return int(self.text)
            if _NUMBER.fullmatch(self.text):
                return float(self.text)
        return self.text

    @property
    def not_finite(self) -> bool:
        """Infinite or not a number: `.inf`, `nan`, `1e999`."""
        if self.quoted:
            return False
        value = self.value
        if isinstance(value, float):
            return value in (float("inf"), float("-inf"))
        return _NOT_FINITE.fullmatch(self.text) is not None


@dataclass(frozen=True)
class Table:
    """A mapping with text keys."""

    entries: dict[str, Tree]
    line: int

    def __iter__(self) -> Iterator[tuple[str, Tree]]:
        return iter(self.entries.items())


@dataclass(frozen=True)
class Items:
    """A list."""

    entries: tuple[Tree, ...]
    line: int


Tree = Scalar | Table | Items


class _Composer(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's reader up to the node graph; nothing is ever constructed from a tag."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _Refused("anchors and aliases are not supported; write the value out", event.start_mark)
        if event.anchor is not None:
            raise _Refused("anchors and aliases are not supported; write the value out", event.start_mark)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")[:60]
            raise _Refused(
                f"the YAML tag {tag} is refused; quote text that begins with '!'", event.start_mark
            )
        if self._depth >= MAX_DEPTH:
            raise _Refused(f"values are nested more than {MAX_DEPTH} deep", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Refused(yaml.MarkedYAMLError):
    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


def parse(text: str, where: str, *, max_length: int) -> Tree:
    """The tree of one YAML document; `where` opens every error message, with the line where there are several."""
    if len(text) > max_length:
        raise SettingError(f"{where}: {len(text):,} characters are more than the {max_length:,} allowed")
    several = "\n" in text.strip()

    def failure(line: int, problem: str) -> SettingError:
        return SettingError(f"{where}, line {line}: {problem}" if several else f"{where}: {problem}")

    try:
        node = _Composer(text).get_single_node()
        return Scalar("", False, 1) if node is None else _tree(node)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = error.character if isinstance(error.character, int) else ord(error.character)
        raise failure(line, f"the character #x{character:04x} is not allowed") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(part for part in (error.context, error.problem) if part)
        raise failure(mark.line + 1 if mark is not None else 1, words or "not valid YAML") from None
    except (ValueError, OverflowError) as error:  # PyYAML lets chr() fail on an escape beyond Unicode
        raise failure(1, f"not valid YAML: {error}") from None


def _tree(node: Any) -> Tree:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        return Scalar(node.value, node.style is not None, line)
    if isinstance(node, yaml.SequenceNode):
        return Items(tuple(_tree(item) for item in node.value), line)
    entries: dict[str, Tree] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            raise _Refused("a key must be plain text", key.start_mark)
        if key.value == "<<" and key.style is None:
            raise _Refused("merge keys are not supported; write the values out", key.start_mark)
        if key.value in entries:
            raise _Refused(f"the key {key.value!r} is written twice", key.start_mark)
        entries[key.value] = _tree(value)
    return Table(entries, line)
