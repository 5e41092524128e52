"""Games in codes, for models too small to read: one character for an action.

    CFMT:!aF=      one may go to the cabinet, fridge, microwave, countertop; heat an apple and put it in the fridge
    T              the model goes to the countertop
    apCFM:!aF=     there are an apple and a plate to take

A capital goes to a place, a small letter takes a thing, and a sign does what can be done here with what is held:
there is never more than one of it. What is listed is what changes the game; looking and examining, which only say again
what the codes show, are left out. A number follows where it is not 1: `a2`.
"""

from __future__ import annotations

import re

from flashreinforce_molt.environments.alfworld.pool import GameError, Scene
from flashreinforce_molt.environments.base import Text

SIGNS = {
    "open": "(",
    "close": ")",
    "move": "-",
    "heat": "!",
    "cool": "~",
    "clean": "%",
    "use": "*",
}
THINGS = {
    "apple": "a", "book": "k", "bowl": "b", "bread": "r", "cellphone": "h", "creditcard": "d", "cup": "c",
    "desklamp": "l", "egg": "e", "fork": "f", "keychain": "y", "laptop": "j", "mug": "m", "pen": "n",
    "pencil": "i", "plate": "p", "potato": "o", "tomato": "t",
    "bed": "B", "cabinet": "C", "countertop": "T", "desk": "K", "diningtable": "D", "drawer": "W",
    "dresser": "E", "fridge": "F", "garbagecan": "G", "microwave": "M", "shelf": "H", "sidetable": "S",
    "sinkbasin": "N",
}  # fmt: skip
GOALS = {"hot": "!", "heat": "!", "cool": "~", "clean": "%", "two": "2", "look": "*", "examine": "*"}
ALPHABET = "".join(dict.fromkeys([*SIGNS.values(), *THINGS.values(), *"0123456789:=?"]))
"""What `model.alphabet` must hold."""

_COMMAND = re.compile(rf"(go to|take|{'|'.join(SIGNS)}) (\w+) (\d+)(?: (?:from|to|with) \w+ \d+)?")
_TASK = re.compile(r"Your task is to: (.*)")


class Codes:
    """What one episode says and understands."""

    def __init__(self) -> None:
        self.codes: dict[str, str] = {}
        """Admissible code -> command."""
        self._goal = ""

    def opening(self, scene: Scene) -> Text:
        """What may be done, and the goal."""
        self._goal = goal(scene.text)
        return self.following(scene)

    def following(self, scene: Scene) -> Text:
        """What may be done now, and the goal again: a model this small looks back a few characters."""
        self.codes = {}
        for command in scene.admissible:
            if found := _COMMAND.fullmatch(command):
                verb, thing, number = found.groups()
                code = SIGNS.get(verb) or _thing(thing) + ("" if number == "1" else number)
                self.codes.setdefault(code, command)
        return f"{''.join(self.codes)}:{self._goal}="

    def invalid(self, reply: str) -> Text:
        """After a reply that is no admissible code."""
        return f"?{''.join(self.codes)}:{self._goal}="

    def command(self, reply: str) -> str | None:
        """The command behind a code."""
        return self.codes.get(reply)


def goal(text: str) -> str:
    """The goal in codes: what must become of the thing, the thing, where it belongs."""
    task = _TASK.search(text)
    if task is None:
        raise GameError(f"the game says no task: {text[-200:]!r}")
    known = {**GOALS, **THINGS}
    return "".join(known[word] for word in re.findall(r"\w+", task[1].lower()) if word in known)


def code_of(codes: dict[str, str], command: str) -> str:
    """The code of an admissible command."""
    return next(code for code, known in codes.items() if known == command)


def _thing(name: str) -> str:
    if name not in THINGS:
        raise GameError(
            f"format=codes has no character for {name!r}; it knows the things of the offline games"
        )
    return THINGS[name]
