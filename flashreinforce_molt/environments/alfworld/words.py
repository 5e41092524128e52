"""Games in words, for models that read: chat messages with everything that may be done, an action in a tag."""

from __future__ import annotations

import re

from flashreinforce_molt.environments.alfworld.pool import Scene
from flashreinforce_molt.environments.base import Text

INSTRUCTION = """\
You act in a household, one action per turn.
{intro}

{admissible}

Think about what to do next, then end your turn with one admissible action in a tag, like this: \
<action>look</action>"""
INVALID = "Nothing happens: {why}. End your turn with one admissible action, like this: <action>look</action>"

_TAG = re.compile(r"<action>\s*(.*?)\s*</action>", re.DOTALL)
_HEADER = re.compile(r"\A\s*-= Welcome to TextWorld, ALFRED! =-\s*")
_GO = "go to "
_UNLISTED = ("help",)


class Words:
    """What one episode says and understands."""

    def __init__(self) -> None:
        self._places: frozenset[str] = frozenset()
        self._scene: Scene | None = None

    def opening(self, scene: Scene) -> Text:
        """The first message."""
        self._scene = scene
        self._places = _places(scene)
        return _message(
            INSTRUCTION.format(
                intro=_HEADER.sub("", scene.text).strip(),
                admissible=self._admissible(list_places=True),
            )
        )

    def following(self, scene: Scene) -> Text:
        """What the action led to."""
        self._scene = scene
        return _message(f"{scene.text.strip()}\n\n{self._admissible(list_places=False)}")

    def invalid(self, reply: str) -> Text:
        """After a reply without an admissible action."""
        assert self._scene is not None
        said = _TAG.findall(reply)
        why = f"{said[-1][:80]!r} is not an admissible action here" if said else "the reply names no action"
        return _message(f"{INVALID.format(why=why)}\n\n{self._admissible(list_places=False)}")

    def command(self, reply: str) -> str | None:
        """The admissible action that a reply names last, in a tag or as all that it says; None without one."""
        assert self._scene is not None
        said = _TAG.findall(reply)
        wanted = _plain(said[-1] if said else reply)
        return next((command for command in self._scene.admissible if _plain(command) == wanted), None)

    def _admissible(self, *, list_places: bool) -> str:
        """All that may be done. The places, most of the list and always the same, are only listed once."""
        assert self._scene is not None
        commands = [c for c in self._scene.admissible if not c.startswith(_GO) and c not in _UNLISTED]
        here = _places(self._scene)
        if list_places or not (here < self._places and len(self._places - here) == 1):
            commands.append(f"{_GO}({' | '.join(sorted(here, key=_by_number))})")
        else:
            commands.append(f"{_GO}(any place but where you are)")
        return "Admissible actions: " + "; ".join(commands)


def _places(scene: Scene) -> frozenset[str]:
    return frozenset(c.removeprefix(_GO) for c in scene.admissible if c.startswith(_GO))


def _by_number(place: str) -> tuple[str, int]:
    name, _, number = place.rpartition(" ")
    return name, int(number) if number.isdigit() else 0


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")


def _message(text: str) -> Text:
    return [{"role": "user", "content": text}]
