"""Make small games of all six ALFWorld tasks, offline, in the folders and format that ALFWorld reads.

    python scripts/build_alfworld_games.py data/alfworld_games
    export ALFWORLD_DATA=data/alfworld_games

Rooms, things and tasks are drawn here; the rules, the texts and what fits where are those of the alfworld package. As
in ALFWorld, `valid_seen` plays in rooms of the training games and `valid_unseen` in others. Every game is won once,
by the walkthrough that is written into it, before it counts as solvable. The same seed makes the same games.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from flashreinforce_molt.data.alfworld_games import GAMES_FOLDER, TASK_TYPES
from flashreinforce_molt.environments.alfworld.worker import Games

APPLIANCE = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "clean", "Cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "heat", "Heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "cool", "Coolable"),
}
KITCHEN, BEDROOM = "kitchen", "bedroom"
THINGS = {
    KITCHEN: ("Apple", "Bowl", "Bread", "Cup", "Egg", "Fork", "Mug", "Plate", "Potato", "Tomato"),
    BEDROOM: ("Book", "Bowl", "CellPhone", "CreditCard", "KeyChain", "Laptop", "Pen", "Pencil"),
}
LAMP = "DeskLamp"
LAMP_PLACES = ("Desk", "SideTable", "Dresser")


@dataclass(frozen=True)
class Size:
    """How much is in a room: places that every room has, places to draw from, how many of them, other things."""

    always: dict[str, tuple[str, ...]]
    drawn: dict[str, tuple[str, ...]]
    places: tuple[int, int]
    things: tuple[int, int]


SIZES = {
    "small": Size(
        {KITCHEN: ("Fridge", "Microwave", "SinkBasin"), BEDROOM: ("Desk",)},
        {
            KITCHEN: ("Cabinet", "CounterTop", "DiningTable", "Drawer", "Shelf"),
            BEDROOM: ("Bed", "Drawer", "Dresser", "Shelf", "SideTable"),
        },
        (2, 3),
        (1, 3),
    ),
    "large": Size(  # about what a kitchen of ALFRED holds
        {
            KITCHEN: (
                "Fridge",
                "Microwave",
                "SinkBasin",
                "GarbageCan",
                *("CounterTop",) * 3,
                *("Cabinet",) * 12,
            ),
            BEDROOM: ("Bed", "Desk", "GarbageCan", "SideTable", *("Drawer",) * 6),
        },
        {
            KITCHEN: ("DiningTable", *("Drawer",) * 8, *("Shelf",) * 3),
            BEDROOM: ("Desk", "Dresser", *("Drawer",) * 4, *("Shelf",) * 6, "SideTable"),
        },
        (6, 10),
        (25, 40),
    ),
}


@dataclass(frozen=True)
class Place:
    """A receptacle."""

    kind: str
    id: str
    location: str


@dataclass(frozen=True)
class Thing:
    """An object and where it is at the start."""

    kind: str
    id: str
    place: Place


@dataclass(frozen=True)
class Game:
    """One task in one furnished room."""

    task: str
    target: str
    goal_place: Place | None
    places: tuple[Place, ...]
    things: tuple[Thing, ...]

    @property
    def parameters(self) -> dict[str, object]:
        """What ALFRED records of a task."""
        return {
            "object_target": self.target,
            "parent_target": self.goal_place.kind if self.goal_place else "",
            "toggle_target": "" if self.goal_place else LAMP,
            "mrecep_target": "",
            "object_sliced": False,
        }


def furnish(kind: str, number: int, size: Size) -> tuple[Place, ...]:
    """The places of a room, which its number fixes."""
    rng = random.Random(f"{kind} {number}")
    kinds = [*size.always[kind], *rng.sample(size.drawn[kind], rng.randint(*size.places))]
    return tuple(
        Place(kind, _place_id(kind, i), f"loc_bar_{i}_bar_1_bar_1_bar_30") for i, kind in enumerate(kinds)
    )


def draw_game(task: str, rooms: range, size: Size, rng: random.Random) -> tuple[Game, int]:
    """A game of a task in one of the rooms, and the room's number. Its goal is not reached at the start."""
    kind = BEDROOM if task == "look_at_obj_in_light" else KITCHEN
    while True:
        number = rng.choice(rooms)
        places = furnish(kind, number, size)
        target = rng.choice([thing for thing in THINGS[kind] if _may(task, thing)])
        homes = [place for place in places if _fits(target, place.kind)]
        goal_place = rng.choice(homes) if homes else None
        starts = [place for place in homes if goal_place and place.kind != goal_place.kind]
        if starts:
            break
    things = []
    for i in range(rng.randint(*size.things)):
        other = rng.choice([thing for thing in THINGS[kind] if thing != target])
        fitting = [place for place in places if _fits(other, place.kind)]
        if fitting:
            things.append(Thing(other, _id(other, 60 + i), rng.choice(fitting)))
    wanted = 2 if task == "pick_two_obj_and_place" else 1
    things += [Thing(target, _id(target, 160 + i), rng.choice(starts)) for i in range(wanted)]
    if task == "look_at_obj_in_light":
        goal_place = None
        things.append(
            Thing(LAMP, _id(LAMP, 190), next(place for place in places if place.kind in LAMP_PLACES))
        )
    return Game(task, target, goal_place, places, tuple(things)), number


def problem(game: Game) -> str:
    """The game in PDDL, with the package's own goal for its task."""
    import alfworld.gen.constants as constants
    from alfworld.gen.goal_library import gdict

    start = "loc_bar_99_bar_9_bar_0_bar_30"
    place_kinds = sorted({place.kind for place in game.places} | {"Fridge", "Microwave", "SinkBasin"})
    thing_kinds = sorted(
        {thing.kind for thing in game.things} | {"Knife", "ButterKnife"}
    )  # the rules name them
    lines = ["(define (problem p)", "(:domain alfred)", "(:objects", "agent1 - agent"]
    lines += [f"{thing.id} - object" for thing in game.things]
    lines += [f"{place.id} - receptacle" for place in game.places]
    lines += [f"{location} - location" for location in [*(place.location for place in game.places), start]]
    lines += [f"{kind}Type - otype" for kind in thing_kinds] + [f"{kind}Type - rtype" for kind in place_kinds]
    lines += [")", "(:init", "(= (total-cost) 0)", f"(atLocation agent1 {start})"]
    for place in game.places:
        lines += [
            f"(receptacleType {place.id} {place.kind}Type)",
            f"(receptacleAtLocation {place.id} {place.location})",
        ]
        if place.kind in constants.OPENABLE_CLASS_LIST:
            lines.append(f"(openable {place.id})")
    for thing in game.things:
        lines += [
            f"(objectType {thing.id} {thing.kind}Type)",
            f"(inReceptacle {thing.id} {thing.place.id})",
            f"(objectAtLocation {thing.id} {thing.place.location})",
            f"({'toggleable' if thing.kind == LAMP else 'pickupable'} {thing.id})",
        ]
        for property_ in ("Cleanable", "Heatable", "Coolable"):
            if thing.kind in constants.VAL_ACTION_OBJECTS[property_]:
                lines.append(f"({property_.lower()} {thing.id})")
    for place_kind in place_kinds:
        lines += [
            f"(canContain {place_kind}Type {kind}Type)" for kind in thing_kinds if _fits(kind, place_kind)
        ]
    names = {
        "obj": game.target,
        "recep": game.parameters["parent_target"],
        "toggle": game.parameters["toggle_target"],
    }
    goal = gdict[game.task]["pddl"].format(**names, mrecep="").replace("#", "-")  # it also closes "(define"
    return "\n".join([*lines, ")", goal])


def walkthrough(game: Game) -> list[str]:
    """Commands that reach the goal."""
    import alfworld.gen.constants as constants
    from alfworld.agents.utils.misc import Demangler

    ids = [part.id.lower() for part in (*game.places, *game.things)]
    names = Demangler(game_infos={id: SimpleNamespace(id=id) for id in ids})
    steps: list[str] = []
    opened: set[Place] = set()
    here: Place | None = None

    def name(part: Place | Thing) -> str:
        return names.demangle_alfred_name(part.id.lower()).strip()

    def visit(place: Place, *, to_open: bool) -> None:
        nonlocal here
        if place != here:
            steps.append(f"go to {name(place)}")
        if to_open and place.kind in constants.OPENABLE_CLASS_LIST and place not in opened:
            steps.append(f"open {name(place)}")
            opened.add(place)
        here = place

    for thing in (thing for thing in game.things if thing.kind == game.target):
        visit(thing.place, to_open=True)
        steps.append(f"take {name(thing)} from {name(thing.place)}")
        if game.goal_place is None:
            lamp = next(other for other in game.things if other.kind == LAMP)
            visit(lamp.place, to_open=False)
            steps.append(f"use {name(lamp)}")
            break
        if game.task in APPLIANCE:
            kind, verb, _ = APPLIANCE[game.task]
            appliance = next(place for place in game.places if place.kind == kind)
            visit(appliance, to_open=False)
            steps.append(f"{verb} {name(thing)} with {name(appliance)}")
        visit(game.goal_place, to_open=True)
        steps.append(f"move {name(thing)} to {name(game.goal_place)}")
    return steps


def write_game(root: Path, split: str, game: Game, room: int, number: int, rng: random.Random) -> Path:
    """Write the files of a game; `solvable` says that its walkthrough has yet to win."""
    from alfworld.gen.goal_library import gdict
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    place = game.goal_place.kind if game.goal_place else LAMP
    folder = (
        root
        / GAMES_FOLDER
        / split
        / f"{game.task}-{game.target}-None-{place}-{room}"
        / f"trial_T{number:06d}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    text = rng.choice(gdict[game.task]["templates"]).format(
        obj=game.target.lower(), recep=place.lower(), toggle=LAMP.lower(), mrecep=""
    )
    record = {
        "task_type": game.task,
        "pddl_params": game.parameters,
        "turk_annotations": {"anns": [{"task_desc": text}]},
    }
    (folder / "traj_data.json").write_text(json.dumps(record), "utf-8")
    content = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text("utf-8"),
        "grammar": Path(ALFRED_TWL2_PATH).read_text("utf-8").replace("UNKNOWN GOAL", text),
        "pddl_problem": problem(game),
        "solvable": False,
        "walkthrough": walkthrough(game),
    }
    (folder / "initial_state.pddl").write_text(content["pddl_problem"], "utf-8")
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(content), "utf-8")
    return path


def prove(games: Games, path: Path) -> int:
    """Win a game by its walkthrough, mark it solvable, and return the steps that it takes.

    Raises RuntimeError when it is not won, or won too early.
    """
    content = json.loads(path.read_text("utf-8"))
    scene = games.answer({"do": "start", "game": 0, "file": str(path), "replay": []})
    for step, command in enumerate(content["walkthrough"]):
        if "error" in scene or scene["won"] or command not in scene["admissible"]:
            raise RuntimeError(f"{path}: step {step} of the walkthrough, {command!r}, meets {scene}")
        scene = games.answer({"do": "act", "game": 0, "command": command})
    games.answer({"do": "close", "game": 0})
    if not scene.get("won"):
        raise RuntimeError(f"{path}: the walkthrough {content['walkthrough']} does not win: {scene}")
    path.write_text(json.dumps({**content, "solvable": True}), "utf-8")
    return len(content["walkthrough"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, help="the folder that ALFWORLD_DATA is to name")
    parser.add_argument("--train", type=int, default=384, metavar="N", help="training games")
    parser.add_argument("--valid-seen", type=int, default=24, metavar="N", help="games in the training rooms")
    parser.add_argument("--valid-unseen", type=int, default=24, metavar="N", help="games in other rooms")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if (arguments.output / GAMES_FOLDER).exists():
        parser.error(f"{arguments.output / GAMES_FOLDER} exists; name another folder, or remove it")
    splits = {
        "train": (arguments.train, range(8)),
        "valid_seen": (arguments.valid_seen, range(8)),
        "valid_unseen": (arguments.valid_unseen, range(8, 16)),
    }
    games, size = Games(stock=False, kept_games=4), SIZES[arguments.size]
    seen: set[str] = set()
    for split, (wanted, rooms) in splits.items():
        rng = random.Random(f"{arguments.seed} {split}")
        steps: Counter[str] = Counter()
        for number in range(wanted):
            task = TASK_TYPES[number % len(TASK_TYPES)]
            game, room = draw_game(task, rooms, size, rng)
            while problem(game) in seen:
                game, room = draw_game(task, rooms, size, rng)
            seen.add(problem(game))
            steps[task] += prove(games, write_game(arguments.output, split, game, room, number, rng))
        mean = sum(steps.values()) / max(wanted, 1)
        print(
            f"{split}: {wanted} games of {len(steps)} tasks, won in {mean:.1f} steps on average", flush=True
        )
    return 0


def _may(task: str, thing: str) -> bool:
    """Whether a task can be about a thing."""
    import alfworld.gen.constants as constants

    return task not in APPLIANCE or thing in constants.VAL_ACTION_OBJECTS[APPLIANCE[task][2]]


def _fits(thing: str, place: str) -> bool:
    import alfworld.gen.constants as constants

    return thing in constants.VAL_RECEPTACLE_OBJECTS.get(place, ())


def _id(kind: str, number: int) -> str:
    """An id as ALFRED writes them: the kind and a position."""
    return f"{kind}_bar__plus_{number:02d}_dot_00_bar__plus_00_dot_90_bar__minus_0{number % 10}_dot_00"


def _place_id(kind: str, number: int) -> str:
    """Ids of sink basins are those of their sink with a fourth part."""
    if kind == "SinkBasin":
        return f"{_id('Sink', number)}_bar_SinkBasin"
    return _id(kind, number)


if __name__ == "__main__":
    sys.exit(main())
