"""HTML and SVG text in which everything is escaped unless it was built here."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"meta", "br", "hr", "link"})
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9\-]*")


class Html(str):
    """Text that is already markup; every other string is escaped when it becomes part of one."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def escaped(text: object) -> Html:
    """Text as markup: inert, and without characters that no HTML document may hold."""
    clean = "".join(c if c.isprintable() or c in "\n\t" or c.isspace() else "�" for c in str(text))
    return Html(html.escape(clean, quote=True))


def joined(*children: Child) -> Html:
    """Children one after the other; plain strings are escaped, None is left out."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escaped(child))
        else:
            parts.append(joined(*child))
    return Html("".join(parts))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element. `class_` gives `class`, `aria_label` gives `aria-label`; an attribute that is None is left out.

    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    text = [f"<{name}"]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is None:
            continue
        assert _ATTRIBUTE.fullmatch(attribute)
        text.append(f' {attribute}="{escaped(value)}"')
    text.append(">")
    if name in _VOID:
        return Html("".join(text))
    return Html("".join([*text, joined(*children), f"</{name}>"]))
