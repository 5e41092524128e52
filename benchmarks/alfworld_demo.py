"""Does the recipe `alfworld_demo` learn to act? Success on held-out games, beside random admissible actions.

    python benchmarks/alfworld_demo.py --output runs/alfworld_demo --seeds 1 2 3

Makes the games, plays the held-out ones at random among the actions that the model chooses from (`TRIES` times each,
as many turns as the model has), and trains once for every seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

from flashreinforce_molt.environments import Task, make_suite
from flashreinforce_molt.recipes import load_experiment

ROOT = Path(__file__).resolve().parents[1]
TRIES = 8


async def random_success(suite, tasks: list[Task], turns: int) -> float:
    """Share of episodes won by admissible actions at random."""
    at_once = asyncio.Semaphore(32)

    async def play(task: Task, number: int) -> bool:
        rng = random.Random(f"{task.prompt_id} {number}")
        async with at_once:
            episode = suite.environment()
            try:
                await episode.reset(task)
                for _ in range(turns):
                    step = await episode.step(rng.choice(list(episode.format.codes)))
                    if step.terminated:
                        break
                return not step.info["failed"]
            finally:
                await episode.close()

    won = await asyncio.gather(*[play(task, number) for task in tasks for number in range(TRIES)])
    await suite.close()
    return statistics.fmean(won)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the games and of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    games = arguments.output / "games"
    if not games.exists():
        subprocess.run([sys.executable, ROOT / "scripts" / "build_alfworld_games.py", games], check=True)
    os.environ["ALFWORLD_DATA"] = str(games.resolve())
    config = load_experiment("alfworld_demo").config
    suite = make_suite("alfworld", config.environment.options)
    tasks = suite.evaluation_tasks(config.evaluation.size)
    chance = asyncio.run(random_success(suite, tasks, config.environment.max_turns))
    print(f"random admissible actions: {chance:.1%} of {TRIES * len(tasks)} held-out episodes\n", flush=True)
    print("| seed | update | sampled | greedy | seconds since the start |\n|---|---|---|---|---|")
    for seed in arguments.seeds:
        run = arguments.output / f"seed_{seed}"
        command = [sys.executable, ROOT / "scripts" / "train_molt.py", "--recipe", "alfworld_demo"]
        with (arguments.output / f"seed_{seed}.log").open("w") as log:
            subprocess.run([*command, "--output", run, "--set", f"seed={seed}"], check=True, stdout=log)
        for line in map(json.loads, (run / "evaluation.jsonl").read_text("utf-8").splitlines()):
            shares = f"{line['sampled_accuracy']:.1%} | {line['greedy_accuracy']:.1%}"
            print(f"| {seed} | {line['update']} | {shares} | {line['wall_s']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
