"""Games in codes, for models too small to read: one character for what to do, one for the thing.

    !aF:>C>F>M>T=        heat an apple and put it in the fridge: one may go to the cabinet, fridge, microwave, ...
    >T                   the model goes to the countertop
    +a+p>C>F>M=          there are an apple and a plate to take

What is listed is what changes the game; looking and examining, which only say again what the codes show, are left out.
A number follows where it is not 1: `+a2`.
"""

from __future__ import annotations

import re

from flashreinforce_molt.environments.alfworld.pool import GameError, Scene
from flashreinforce_molt.environments.base import Text

VERBS = {
    "go to": ">",
    "open": "(",
    "close": ")",
    "take": "+",
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
ALPHABET = "".join(dict.fromkeys([*VERBS.values(), *THINGS.values(), *"0123456789:=?"]))
"""What `model.alphabet` must hold."""

_COMMAND = re.compile(rf"({'|'.join(VERBS)}) (\w+) (\d+)(?: (?:from|to|with) \w+ \d+)?")
_TASK = re.compile(r"Your task is to: (.*)")


class Codes:
    """What one episode says and understands."""

    def __init__(self) -> None:
        self.codes: dict[str, str] = {}
        """Admissible code -> command."""

    def opening(self, scene: Scene) -> Text:
        """The goal and what may be done."""
        return f"{goal(scene.text)}:{self.following(scene)}"

    def following(self, scene: Scene) -> Text:
        """What may be done now."""
        self.codes = {}
        for command in scene.admissible:
            if found := _COMMAND.fullmatch(command):
                verb, thing, number = found.groups()
                self.codes.setdefault(
                    f"{VERBS[verb]}{_thing(thing)}{'' if number == '1' else number}", command
                )
        return "".join(self.codes) + "="

    def invalid(self, reply: str) -> Text:
        """After a reply that is no admissible code."""
        return "?" + "".join(self.codes) + "="

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
