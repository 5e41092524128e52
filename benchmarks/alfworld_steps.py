"""What an action and a reset cost in ALFWorld's games, stock and by our fast path, on the same games and actions.

    python benchmarks/alfworld_steps.py

Makes small and large games, one of each task, and plays each at random in a process of its own for each way, CPU time
and texts noted; the texts must be the same. Then 64 episodes at once on two workers, by their walkthroughs.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flashreinforce_molt.environments.alfworld.pool import GamePool
from flashreinforce_molt.environments.alfworld.worker import Games

ROOT = Path(__file__).resolve().parents[1]
STEPS, EPISODES = 25, 64
WHAT = {"load": "first reset of a game", "reset": "later reset of it", "step": "action"}


def measure(mode: str, files: list[str]) -> dict[str, object]:
    """CPU milliseconds of every kind of request, and a digest of all that was said."""
    games = Games(stock=mode == "stock", kept_games=64)
    costs: dict[str, list[float]] = {name: [] for name in WHAT}
    said = hashlib.sha256()

    def ask(cost: str, **request: object) -> dict:
        before = time.process_time()
        scene = games.answer({"game": 0, **request})
        costs[cost].append(1e3 * (time.process_time() - before))
        said.update(json.dumps(scene).encode())
        return scene

    for file in files:
        ask("load", do="start", file=file, replay=[])
        scene = ask("reset", do="start", file=file, replay=[])
        rng = random.Random(file)
        for _ in range(STEPS):
            scene = ask("step", do="act", command=rng.choice(scene["admissible"]))
    return {"costs": costs, "said": said.hexdigest()}


def compared(size: str, folder: Path) -> None:
    files = sorted(str(path) for path in folder.rglob("train/**/game.tw-pddl"))
    results = {}
    for mode in ("stock", "fast"):
        command = [sys.executable, __file__, "--measure", mode, *files]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        results[mode] = json.loads(done.stdout.splitlines()[-1])
    same = results["stock"]["said"] == results["fast"]["said"]
    for name, words in WHAT.items():
        stock, fast = (statistics.fmean(results[mode]["costs"][name]) for mode in ("stock", "fast"))
        print(f"| {size} | {words} | {stock:.1f} | {fast:.1f} | {stock / fast:.1f} |", flush=True)
    print(f"{size}: every text and list of actions the same: {'yes' if same else 'NO'}", file=sys.stderr)
    if not same:
        raise SystemExit(1)


async def crowd(folder: Path) -> str:
    """`EPISODES` at once on two workers."""
    files = sorted(str(path) for path in folder.rglob("game.tw-pddl"))
    latencies: list[float] = []

    async def play(pool: GamePool, file: str) -> bool:
        game = pool.game(file)
        scene = await game.start()
        for command in json.loads(Path(file).read_text("utf-8"))["walkthrough"]:
            before = time.monotonic()
            scene = await game.act(command)
            latencies.append(1e3 * (time.monotonic() - before))
        game.close()
        return scene.won

    with GamePool(workers=2) as pool:
        await asyncio.gather(
            *[play(pool, file) for file in files]
        )  # starts the workers, translates the games
        latencies.clear()
        before = time.monotonic()
        won = await asyncio.gather(*[play(pool, files[i % len(files)]) for i in range(EPISODES)])
        took = time.monotonic() - before
        memory = [proportional_mb(pid) for pid in pool.pids()]
    return (
        f"{sum(won)} of {EPISODES} concurrent episodes won in {took:.1f} s, {len(latencies)} actions, "
        f"median {statistics.median(latencies):.0f} ms in the crowd, workers {' and '.join(memory)} MB"
    )


def proportional_mb(pid: int) -> str:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return f"{sum(int(line.split()[1]) for line in lines if line.startswith('Pss:')) / 1024:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        mode, *files = arguments.measure
        print(json.dumps(measure(mode, files)), flush=True)
        os._exit(0)  # unloading the planner crashes
    with tempfile.TemporaryDirectory() as temporary:
        print("| games | what | stock, CPU ms | ours, CPU ms | times |\n|---|---|---|---|---|")
        for size in ("small", "large"):
            folder = Path(temporary) / size
            build = [sys.executable, str(ROOT / "scripts" / "build_alfworld_games.py"), str(folder)]
            counts = ["--train", "6", "--valid-seen", "3", "--valid-unseen", "3"]
            subprocess.run([*build, "--size", size, *counts], check=True, stdout=subprocess.DEVNULL)
            compared(size, folder)
        for size in ("small", "large"):
            print(f"{size}: {asyncio.run(crowd(Path(temporary) / size))}", flush=True)


if __name__ == "__main__":
    main()
