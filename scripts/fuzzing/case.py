"""What may come of a case: a right answer or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

ANSWER, REFUSED = "answer", "refused"
LONGEST_MESSAGE = 3000

STRANGE_TEXTS = (
    "",
    " ",
    "\x00",
    "\x1b[31m",
    "\u202e",
    "\ud800",
    "\U0001f600" * 3,
    "a" * 20_000,
    "'; DROP TABLE runs; --",
    "$(touch pwned)",
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "%s%n{0.__class__}",
    "${oc.env:HOME}",
    "nan",
    "-0",
    "None",
)
STRANGE_VALUES = (
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    1e308,
    "7",
    [],
    {},
    [[]],
    {"a": {"b": [1]}},
    *STRANGE_TEXTS,
)


class Wrong(AssertionError):
    """Neither a right answer nor a clear refusal."""


def attempt(
    action: Callable[[], Any],
    refusals: tuple[type[Exception], ...],
    *,
    must: str | None = None,
    names: str = "",
) -> tuple[str, Any]:
    """What came of `action`. `must` is the only right outcome; a refusal has one of the types and says `names`."""
    try:
        result = action()
    except Exception as error:
        if type(error) not in refusals:
            raise Wrong(f"{type(error).__name__} came from the depths: {str(error)[:300]}") from error
        said = str(error)
        if must == ANSWER:
            raise Wrong(f"sound input was refused: {said[:300]}") from error
        if names not in said or not said.strip() or len(said) > LONGEST_MESSAGE:
            raise Wrong(
                f"an unclear refusal ({len(said)} characters, without {names!r}?): {said[:300]}"
            ) from error
        return REFUSED, None
    if must == REFUSED:
        raise Wrong(f"wrong input was accepted: {str(result)[:300]}")
    return ANSWER, result


def demand(holds: bool, what: str) -> None:
    """Raise Wrong unless `holds`."""
    if not holds:
        raise Wrong(what)


def flipped(data: bytes, rng: Random) -> bytes:
    """`data` with one bit changed."""
    damaged = bytearray(data)
    damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def mangled(text: str, rng: Random) -> str:
    """`text` with a few characters deleted, doubled or replaced."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        piece = rng.choice(
            ["", text[at : at + 9] * 2, rng.choice("[]{}:,'\"&*!|>%@`#-\n\t "), rng.choice(STRANGE_TEXTS)]
        )
        text = text[:at] + piece + text[at + rng.randint(0, 3) :]
    return text
