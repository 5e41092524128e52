"""Real ALFWorld games, made offline: the fast path says what stock says, and nothing leaks from one to another."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flashreinforce_molt.data.alfworld_games import TASK_TYPES, find_games
from flashreinforce_molt.environments import EpisodeLost, make_suite
from flashreinforce_molt.environments.alfworld.pool import GameError, GamePool

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def games(tmp_path_factory) -> Path:
    pytest.importorskip("alfworld")
    folder = tmp_path_factory.mktemp("alfworld")
    script = ROOT / "scripts" / "build_alfworld_games.py"
    counts = ["--train", "6", "--valid-seen", "6", "--valid-unseen", "6"]
    subprocess.run([sys.executable, script, folder, *counts], check=True)
    return folder


@pytest.fixture
def suite(games, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    return make_suite("alfworld", {})


def files_of(games: Path, split: str = "train") -> list[str]:
    return sorted(str(path) for path in (games / "json_2.1.1" / split).rglob("game.tw-pddl"))


def walkthrough_of(file: str) -> list[str]:
    return json.loads(Path(file).read_text())["walkthrough"]


async def played(pool: GamePool, file: str, steps: int, seed: int = 0) -> list:
    """Everything that a game says to random admissible actions, and to one that it does not know."""
    rng = random.Random(f"{Path(file).parent.name} {seed}")
    game = pool.game(file)
    scenes = [await game.start()]
    for _ in range(steps):
        scenes.append(await game.act(rng.choice([*scenes[-1].admissible, "dance"])))
    game.close()
    return scenes


def test_the_script_makes_games_of_all_six_tasks(games) -> None:
    for split in ("train", "valid_seen", "valid_unseen"):
        names = [Path(file).parts[-3].split("-")[0] for file in files_of(games, split)]
        assert sorted(names) == sorted(TASK_TYPES)
    rooms = {
        split: {Path(file).parts[-3].rsplit("-", 1)[1] for file in files_of(games, split)}
        for split in ("train", "valid_seen", "valid_unseen")
    }
    assert not rooms["valid_unseen"] & (rooms["train"] | rooms["valid_seen"])


def test_the_same_seed_makes_the_same_games(games, tmp_path) -> None:
    script = ROOT / "scripts" / "build_alfworld_games.py"
    counts = ["--train", "6", "--valid-seen", "0", "--valid-unseen", "0"]
    subprocess.run([sys.executable, script, tmp_path / "again", *counts], check=True)
    first, again = files_of(games), files_of(tmp_path / "again")
    assert [Path(file).read_bytes() for file in first] == [Path(file).read_bytes() for file in again]


def test_the_fast_path_says_what_stock_says(games) -> None:
    async def everything(stock: bool) -> list:
        with GamePool(workers=1, stock=stock) as pool:
            return [
                await played(pool, file, 20) for file in files_of(games) + files_of(games, "valid_unseen")
            ]

    fast, stock = asyncio.run(everything(False)), asyncio.run(everything(True))
    assert fast == stock
    assert len({scene.text for scenes in fast for scene in scenes}) > 50


def test_games_side_by_side_say_what_they_say_alone(games) -> None:
    """Two of each game at once, with other actions, all in one process; then each alone."""
    ways = [(file, seed) for file in files_of(games) for seed in (1, 2)]

    async def together() -> list:
        with GamePool(workers=1) as pool:
            return await asyncio.gather(*[played(pool, file, 12, seed) for file, seed in ways])

    async def alone() -> list:
        with GamePool(workers=1) as pool:
            return [await played(pool, file, 12, seed) for file, seed in ways]

    assert asyncio.run(together()) == asyncio.run(alone())


def test_every_walkthrough_wins_in_words_and_only_at_its_end(suite, games) -> None:
    async def play() -> None:
        for task in suite.evaluation_tasks(12):
            episode = suite.environment()
            prompt = await episode.reset(task)
            assert "Your task is to: " in prompt[0]["content"]
            commands = walkthrough_of(str(games / task.data["gold"]))
            steps = [await episode.step(f"So: <action>{command}</action>") for command in commands]
            assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
            assert [step.info["failed"] for step in steps] == [True] * (len(steps) - 1) + [False]
            assert not any(step.info["invalid_actions"] for step in steps)
            await episode.close()
        await suite.close()

    asyncio.run(play())


def test_a_demonstration_is_a_real_game(games, monkeypatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    suite = make_suite("alfworld", {"format": "codes", "wander": 0.5})
    order, rng = suite.training_tasks(0), random.Random(0)

    async def play(task, demonstration) -> bool:
        episode = suite.environment()
        assert await episode.reset(task) == demonstration.prompt
        for action, observation in demonstration.turns:
            assert (await episode.step(action)).observation == observation
        last = await episode.step(demonstration.answer)
        await episode.close()
        return last.info["won"]

    async def play_all(correct: bool) -> list[bool]:
        shown = [(order[i], demonstrations[correct][i]) for i in range(6)]
        return [await play(task, demonstration) for task, demonstration in shown]

    demonstrations = {
        correct: [suite.demonstration(order[i], rng, correct) for i in range(6)] for correct in (True, False)
    }
    assert suite.pool.pids() == []  # recorded by workers that are gone
    assert all(asyncio.run(play_all(True)))
    assert not all(asyncio.run(play_all(False)))
    asyncio.run(suite.close())


@pytest.mark.parametrize("split", ["train", "valid_seen", "valid_unseen"])
def test_the_games_of_a_split_are_those_of_alfworlds_own_filter(games, tmp_path, split, monkeypatch) -> None:
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    folder = tmp_path / "json_2.1.1" / split
    for i, file in enumerate(files_of(games, split)):
        copy = folder / Path(file).parts[-3] / f"trial_T{i}"
        copy.mkdir(parents=True)
        for name in ("traj_data.json", "game.tw-pddl"):
            (copy / name).write_bytes((Path(file).parent / name).read_bytes())
    trials = sorted(folder.rglob("trial_*"))
    (trials[0] / "game.tw-pddl").unlink()
    (trials[1] / "game.tw-pddl").write_text(json.dumps({"solvable": False}))
    (trials[2] / "game.tw-pddl").write_text(json.dumps({}))
    (trials[3] / "traj_data.json").write_text(json.dumps({"task_type": "pick_and_place_with_movable_recep"}))
    trials[4].parent.rename(trials[4].parent.with_name("pick-movable-1"))
    names = {
        "train": "train",
        "valid_seen": "eval_in_distribution",
        "valid_unseen": "eval_out_of_distribution",
    }
    paths = {"train": "data_path", "valid_seen": "eval_id_data_path", "valid_unseen": "eval_ood_data_path"}
    config = {
        "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
        "dataset": {paths[split]: str(folder), "num_train_games": -1, "num_eval_games": -1},
    }
    theirs = AlfredTWEnv(config, train_eval=names[split]).game_files
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    suite = make_suite("alfworld", {"evaluation_path": split})
    ours = [str(tmp_path / task.data["gold"]) for task in suite.evaluation_tasks(len(theirs))]
    assert sorted(ours) == sorted(theirs)
    assert len(ours) == 1


def test_a_killed_worker_costs_no_episode(games) -> None:
    async def play(kill: bool) -> list:
        with GamePool(workers=1) as pool:
            game = pool.game(files_of(games)[0])
            scenes = [await game.start()]
            for command in walkthrough_of(files_of(games)[0]):
                if kill and len(scenes) == 3:
                    os.kill(pool.pids()[0], signal.SIGKILL)
                scenes.append(await game.act(command))
            assert (pool.deaths, game.replays) == (kill, kill)
            return scenes

    assert asyncio.run(play(True)) == asyncio.run(play(False))


@pytest.mark.parametrize("damage", ["not json", "no grammar", "bad PDDL", "bad grammar"])
def test_a_bad_game_is_named_and_the_next_one_plays(games, tmp_path, damage) -> None:
    content = json.loads(Path(files_of(games)[0]).read_text())
    if damage == "no grammar":
        del content["grammar"]
    elif damage == "bad PDDL":
        content["pddl_problem"] = content["pddl_problem"].replace("(:init", "(:inti")
    elif damage == "bad grammar":
        content["grammar"] = "grammar :: oops"
    bad = tmp_path / "game.tw-pddl"
    bad.write_text("{" if damage == "not json" else json.dumps(content))

    async def play() -> None:
        with GamePool(workers=1) as pool:
            with pytest.raises(GameError, match=str(bad)):
                await pool.game(str(bad)).start()
            assert (await pool.game(files_of(games)[0]).start()).admissible
            assert pool.deaths == 0

    asyncio.run(play())


def test_a_game_that_is_gone_loses_the_episode_by_name(suite, games) -> None:
    task = suite.evaluation_tasks(1)[0]
    hidden = (games / task.data["gold"]).rename(games / "hidden")
    try:
        with pytest.raises(EpisodeLost, match="does not exist; ALFWORLD_DATA="):
            asyncio.run(suite.environment().reset(task))
    finally:
        hidden.rename(games / task.data["gold"])


def test_a_game_worker_holds_no_torch(games) -> None:
    async def play() -> str:
        with GamePool(workers=1) as pool:
            await pool.game(files_of(games)[0]).start()
            return Path(f"/proc/{pool.pids()[0]}/maps").read_text()

    assert "libtorch" not in asyncio.run(play())


def test_a_run_takes_updates_from_real_games(games, tmp_path, monkeypatch) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the local engine needs torch")
    from flashreinforce_molt.recipes import load_experiment
    from flashreinforce_molt.training import train

    monkeypatch.setenv("ALFWORLD_DATA", str(games))
    overrides = ["train.updates=2", "train.batch_size=8", "rollout.in_flight=8", "warm_start.steps=40"]
    overrides += ["warm_start.batch_size=16", "evaluation.size=4", "evaluation.every=0"]
    assert train(load_experiment("alfworld_demo", overrides=overrides), tmp_path / "run") == 0
    for line in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()):
        if "reward_mean" in line:
            assert line["won_mean"] == line["reward_mean"]
            assert 1 <= line["steps_mean"] == line["turns_mean"] <= 16
            assert line["invalid_actions_mean"] < line["steps_mean"]
            assert line["dropped_total"] == 0


def test_the_games_that_count_are_those_of_the_package_itself(games: Path, tmp_path: Path) -> None:
    """Split by split, and with trials that ALFWorld leaves out: sliced, movable, another task, no game, not solvable."""
    root = tmp_path / "games"
    shutil.copytree(games, root)
    trials = sorted((root / "json_2.1.1" / "train").rglob("traj_data.json"))
    spoil = iter(trials)
    next(spoil).parent.rename(trials[0].parent.with_name("trial_movable_1"))
    next(spoil).parent.rename(trials[1].parent.with_name("trial_AppleSliced_1"))
    other = next(spoil)
    other.write_text(json.dumps({**json.loads(other.read_text()), "task_type": "pick_and_throw"}))
    next(spoil).with_name("game.tw-pddl").unlink()
    unsolvable = next(spoil).with_name("game.tw-pddl")
    unsolvable.write_text(json.dumps({**json.loads(unsolvable.read_text()), "solvable": False}))
    for split, name in (
        ("train", "train"),
        ("valid_seen", "eval_in_distribution"),
        ("valid_unseen", "eval_out_of_distribution"),
    ):
        theirs = games_by_the_package(root / "json_2.1.1" / split, name)
        ours, _ = find_games(root, split)
        assert {str(root / game) for game in ours} == theirs
        assert len(ours) == (1 if split == "train" else 6)


def games_by_the_package(folder: Path, name: str) -> set[str]:
    from alfworld.agents.environment.alfred_tw_env import TASK_TYPES, AlfredTWEnv

    env = object.__new__(AlfredTWEnv)  # its constructor only calls what is called here
    paths = dict.fromkeys(("data_path", "eval_id_data_path", "eval_ood_data_path"), str(folder))
    env.config = {
        "dataset": {**paths, "num_train_games": -1, "num_eval_games": -1},
        "env": {"task_types": list(TASK_TYPES)},
    }
    env.train_eval = name
    env.collect_game_files()
    return set(env.game_files)
