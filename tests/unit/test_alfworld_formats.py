"""What ALFWorld's games say to a model and understand of it, and which games there are. Needs no alfworld package."""

import asyncio
import importlib.util
import json

import pytest

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.data.alfworld_games import TASK_TYPES
from flashreinforce_molt.environments import EpisodeLost, Task, make_suite
from flashreinforce_molt.environments.alfworld.codes import ALPHABET, Codes, goal
from flashreinforce_molt.environments.alfworld.episode import AlfWorldEpisode
from flashreinforce_molt.environments.alfworld.games import game_file, tasks_of
from flashreinforce_molt.environments.alfworld.pool import GameError, GamePool, Scene
from flashreinforce_molt.environments.alfworld.words import Words
from flashreinforce_molt.recipes import load_experiment

INTRO = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a "
    "fridge 1, a cabinet 2, a cabinet 1, and a cabinet 10.\n\nYour task is to: heat some apple and put it in fridge."
)
PLACES = ["go to cabinet 1", "go to cabinet 10", "go to cabinet 2", "go to fridge 1"]
START = Scene(INTRO, [*PLACES, "help", "inventory", "look"], False)
AT_FRIDGE = Scene(
    "You arrive at fridge 1. The fridge 1 is closed.",
    ["examine fridge 1", *PLACES[:3], "help", "inventory", "look", "open fridge 1"],
    False,
)
INSIDE = Scene(
    "You open the fridge 1. The fridge 1 is open. In it, you see an apple 1, and an apple 2.",
    [
        "close fridge 1",
        "examine fridge 1",
        *PLACES[:3],
        "help",
        "inventory",
        "look",
        "take apple 1 from fridge 1",
        "take apple 2 from fridge 1",
    ],
    False,
)


def said(text) -> str:
    (message,) = text
    assert message["role"] == "user"
    return message["content"]


def test_the_first_message_has_the_task_and_every_place() -> None:
    text = said(Words().opening(START))
    assert "Welcome" not in text
    assert "Your task is to: heat some apple and put it in fridge." in text
    assert (
        "Admissible actions: inventory; look; go to (cabinet 1 | cabinet 2 | cabinet 10 | fridge 1)\n" in text
    )


def test_places_are_listed_again_only_when_they_are_others() -> None:
    words = Words()
    words.opening(START)
    text = said(words.following(AT_FRIDGE))
    assert text.startswith("You arrive at fridge 1. The fridge 1 is closed.\n\nAdmissible actions: ")
    assert text.endswith("inventory; look; open fridge 1; go to (any place but where you are)")
    fewer = AT_FRIDGE._replace(admissible=["go to cabinet 1", "look"])
    assert said(words.following(fewer)).endswith("Admissible actions: look; go to (cabinet 1)")


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("It may be warm.\n<action>open fridge 1</action>", "open fridge 1"),
        ("<action>look</action> no, rather <action> Open  Fridge 1. </action>", "open fridge 1"),
        ("<action>\ngo to cabinet 10\n</action>", "go to cabinet 10"),
        ("open fridge 1", "open fridge 1"),
        ("I open fridge 1", None),
        ("<action>open fridge 2</action>", None),
        ("<action>look</action> <action>open it</action>", None),
        ("<action>open fridge 1", None),
        ("", None),
    ],
)
def test_a_reply_means_the_admissible_action_in_its_last_tag(reply, command) -> None:
    words = Words()
    words.opening(START)
    words.following(AT_FRIDGE)
    assert words.command(reply) == command


def test_an_invalid_reply_is_told_what_is_wrong_and_what_is_admissible() -> None:
    words = Words()
    words.opening(START)
    words.following(AT_FRIDGE)
    text = said(words.invalid("<action>open door</action>"))
    assert text.startswith("Nothing happens: 'open door' is not an admissible action here.")
    assert "open fridge 1; go to" in text
    assert said(words.invalid("Hm.")).startswith("Nothing happens: the reply names no action.")


def test_codes_name_what_changes_the_game() -> None:
    codes = Codes()
    assert codes.opening(START) == "CC10C2F:!aF="
    assert codes.following(AT_FRIDGE) == "CC10C2(:!aF="
    assert codes.following(INSIDE) == ")CC10C2aa2:!aF="
    assert codes.command("a2") == "take apple 2 from fridge 1"
    assert codes.command("b") is None
    assert codes.invalid("b") == "?)CC10C2aa2:!aF="
    holding = ["cool apple 2 with fridge 1", "close fridge 1", "go to cabinet 1", "move apple 2 to fridge 1"]
    assert codes.following(Scene("", holding, False)) == "~)C-:!aF="
    assert codes.command("-") == "move apple 2 to fridge 1"


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("put a mug in shelf", "mH"),
        ("put some mug on shelf.", "mH"),
        ("look at book under the desklamp.", "*kl"),
        ("examine the book with the desklamp.", "*kl"),
        ("put a clean plate in cabinet.", "%pC"),
        ("clean some plate and put it in cabinet.", "%pC"),
        ("heat some egg and put it in garbagecan", "!eG"),
        ("put a hot egg in garbagecan", "!eG"),
        ("cool some egg and put it in garbagecan", "~eG"),
        ("put two cup in drawer", "2cW"),
        ("find two cup and put them in drawer", "2cW"),
    ],
)
def test_goals_of_all_tasks_have_a_code(task, expected) -> None:
    assert goal(f"You see a shelf 1.\n\nYour task is to: {task}") == expected


def test_what_has_no_code_is_named() -> None:
    with pytest.raises(GameError, match="no character for 'toaster'"):
        Codes().following(Scene("", ["go to toaster 1"], False))


def test_the_demo_recipe_has_a_token_for_every_code() -> None:
    config = load_experiment("alfworld_demo").config
    assert set(ALPHABET) == set(config.model.alphabet)
    assert config.rollout.max_new_tokens == config.environment.max_turns * config.rollout.max_turn_tokens


@pytest.fixture
def games(tmp_path, monkeypatch):
    """A folder of games that nobody can play, with things that ALFWorld leaves out."""
    for split, count in (("train", 9), ("valid_seen", 4), ("valid_unseen", 2)):
        for i in range(count):
            for name in (f"{TASK_TYPES[i % 6]}-Mug-None-Shelf-{i}", f"pick-movable-{i}", f"pick-Sliced-{i}"):
                folder = tmp_path / "json_2.1.1" / split / name / "trial_T1"
                folder.mkdir(parents=True)
                (folder / "traj_data.json").write_text(json.dumps({"task_type": TASK_TYPES[i % 6]}))
                (folder / "game.tw-pddl").write_text(json.dumps({"solvable": True}))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return tmp_path


def test_evaluation_takes_seen_and_unseen_games_in_turn(games) -> None:
    suite = make_suite("alfworld", {})
    names = [task.data["gold"] for task in suite.evaluation_tasks(6)]
    assert [name.split("/")[1] for name in names] == ["valid_seen", "valid_unseen"] * 2 + ["valid_seen"] * 2
    with pytest.raises(SettingError, match=r"evaluation\.size=7: valid_seen and valid_unseen hold 6 games"):
        suite.evaluation_tasks(7)


def test_training_plays_every_game_once_in_each_pass(games) -> None:
    order = make_suite("alfworld", {}).training_tasks(3)
    passes = [[order[position].prompt_id for position in range(9 * i, 9 * i + 9)] for i in range(2)]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted({*passes[0]})
    assert passes[0] != passes[1]
    few = make_suite("alfworld", {"max_rows": 2}).training_tasks(3)
    assert len({few[position].prompt_id for position in range(10)}) == 2


def test_prepared_lists_are_read(games, tmp_path) -> None:
    game = "json_2.1.1/train/a-Mug-None-Shelf-1/trial_T1/game.tw-pddl"
    row = {
        "prompt": [{"role": "user", "content": "ALFWorld game"}],
        "reward_model": {"ground_truth": game, "style": "alfworld"},
        "prompt_id": "alfworld_train-1",
    }
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    (task,) = tasks_of(games, str(tmp_path / "train.jsonl"))
    assert (task.prompt_id, task.data["gold"]) == ("alfworld_train-1", game)
    with pytest.raises(SettingError, match="'tests' is neither one of train, valid_seen, valid_unseen nor"):
        tasks_of(games, "tests")


def test_only_game_files_below_the_folder_are_played(games) -> None:
    game = make_suite("alfworld", {}).evaluation_tasks(1)[0].data["gold"]
    assert game_file(games, Task("under Molt", {"ground_truth": game})) == str(games / game)
    for name, words in (
        ("../game.tw-pddl", "lies outside of ALFWORLD_DATA"),
        ("/etc/passwd", "lies outside of ALFWORLD_DATA"),
        ("json_2.1.1/none", "does not exist"),
        (None, "names no game file"),
    ):
        with pytest.raises(EpisodeLost, match=words) as caught:
            game_file(games, Task("x", {"gold": name}))
        assert caught.value.reason == "bad_game"


def test_missing_games_say_how_to_get_them(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(SettingError, match=r"ALFWORLD_DATA is not set; .*scripts/build_alfworld_games.py"):
        make_suite("alfworld", {})
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(SettingError, match=r"holds no folder json_2.1.1"):
        make_suite("alfworld", {})


def test_a_missing_package_and_wrong_options_are_named(monkeypatch) -> None:
    with pytest.raises(SettingError, match="format='prose'; known: words, codes"):
        make_suite("alfworld", {"format": "prose"})
    with pytest.raises(SettingError, match="workers=0"):
        make_suite("alfworld", {"workers": 0})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install -e '.\[alfworld\]'"):
        make_suite("alfworld", {})


def test_an_episode_labels_every_step_and_pays_for_the_end_alone(tmp_path) -> None:
    (tmp_path / "file").touch()

    async def play() -> None:
        with GamePool(workers=1, module="alfworld_stand_in") as pool:
            episode = AlfWorldEpisode(tmp_path, pool, Words())
            await episode.reset(Task("x", {"gold": "file"}))
            wrong = await episode.step("dance")
            assert wrong.observation is not None
            first, lost, last = [await episode.step(reply) for reply in ("count", "die once", "win")]
            await episode.close()
        assert [step.info["failed"] for step in (wrong, first, lost, last)] == [True, True, True, False]
        assert [step.info["invalid_actions"] for step in (wrong, first, lost, last)] == [1, 0, 0, 0]
        assert [step.info["game_restarts"] for step in (wrong, first, lost, last)] == [0, 0, 1, 0]
        assert [step.info["steps"] for step in (wrong, first, lost, last)] == [1, 1, 1, 1]
        assert [(step.reward, step.terminated) for step in (first, last)] == [(0.0, False), (1.0, True)]
        assert last.info["won"] is True

    asyncio.run(play())


def test_a_game_that_cannot_be_played_loses_the_episode_by_name(tmp_path) -> None:
    (tmp_path / "missing").touch()

    async def play() -> None:
        with GamePool(workers=1, module="alfworld_stand_in") as pool:
            episode = AlfWorldEpisode(tmp_path, pool, Words())
            try:
                await episode.reset(Task("x", {"gold": "missing"}))
            finally:
                await episode.close()

    with pytest.raises(EpisodeLost, match="missing: FileNotFoundError") as caught:
        asyncio.run(play())
    assert caught.value.reason == "bad_game"
