"""Updates per second of the same engine, asynchronous against synchronous, with long-tailed rollouts and slow tools.

    python benchmarks/async_speedup.py

Every figure comes from whole runs of the engine in this one process: real workers, real weights, one optimizer
step per batch. An agent speaks in turns of 4 tokens; the number of turns is lognormal, and with `tools` every
turn but the last is followed by a call that takes 50 ms. Lengths depend on the task alone, so every run decodes
the same trajectories.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

TURN_TOKENS = 4
LONGEST_TOKENS = 128
TOOL_SECONDS = 0.05
SKIPPED_UPDATES = 3


class LongTail:
    """Suite of agents whose length is lognormal (`median` tokens, `sigma`)."""

    def __init__(self, sigma: float, median: float = 18.0, tools: bool = False) -> None:
        self.sigma, self.median, self.tools = sigma, median, tools

    def training_tasks(self, seed: int) -> LongTail:
        return self

    def __getitem__(self, position: int):
        from flashreinforce_molt.environments import Task

        rng = random.Random(position)
        tokens = min(LONGEST_TOKENS, self.median * rng.lognormvariate(0.0, self.sigma))
        return Task(
            f"task-{position}",
            {"turns": max(1, round(tokens / TURN_TOKENS)), "reward": float(rng.random() < 0.5)},
        )

    def evaluation_tasks(self, size: int) -> list:
        return []

    def environment(self) -> Agent:
        return Agent(self.tools)


class Agent:
    """Ends after its number of turns; its tool waits without computing, as a remote one does."""

    def __init__(self, tools: bool) -> None:
        self.tools = tools

    def reset(self, task) -> str:
        self.left, self.reward = task.data["turns"], task.data["reward"]
        return "agent task>"

    async def step(self, action: str):
        from flashreinforce_molt.environments import Step

        self.left -= 1
        if self.left == 0:
            return Step(None, self.reward, True, info={"failed": self.reward == 0})
        if self.tools:
            await asyncio.sleep(TOOL_SECONDS)
        return Step(".", 0.0, False, info={"tool_calls": 1})

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class Timing:
    """Medians over the updates of one run, in seconds; `tokens` are policy tokens of one update."""

    step: float
    idle: float
    tokens: float
    lag: float

    @property
    def learn(self) -> float:
        return self.step - self.idle


def measure(options: argparse.Namespace, workload: str, *settings: str) -> Timing:
    """Run the engine once and read its own metrics."""
    from flashreinforce_molt.recipes import load_experiment
    from flashreinforce_molt.training import train

    overrides = [
        "environment.name=async_speedup:LongTail",
        f"environment.options={workload}",
        "environment.max_turns=64",
        "model.config.max_position_embeddings=512",
        "model.config.num_hidden_layers=4",
        f"train.updates={options.updates + SKIPPED_UPDATES}",
        f"train.batch_size={options.batch_size}",
        # Both modes: rows of one length share a forward pass, so that little is padded.
        f"train.micro_batch_size={options.micro_batch_size}",
        f"rollout.max_turn_tokens={TURN_TOKENS}",
        f"rollout.max_new_tokens={2 * LONGEST_TOKENS}",
        "rollout.max_context_tokens=320",
        "warm_start.steps=0",
        "evaluation.size=0",
        "telemetry.live=never",
        *settings,
    ]
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run"
        train(load_experiment("quickstart", overrides=overrides), output)
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    lines = lines[SKIPPED_UPDATES:]
    # The mean, not the median: with long tails a few updates carry most of the waiting.
    return Timing(
        *(statistics.fmean(line[name] for line in lines) for name in ("step_s", "learner_idle_s")),
        tokens=statistics.fmean(line["response_tokens_mean"] for line in lines) * options.batch_size,
        lag=statistics.fmean(line["policy_lag_mean"] for line in lines),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=30, help="timed updates of each run")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=3, help="batches under way in the asynchronous run")
    parser.add_argument("--rounds", type=int, default=1, help="repetitions; the median ratio is printed")
    parser.add_argument("--sync-threads", type=int, default=1, help="torch threads of the synchronous run")
    options = parser.parse_args()

    import torch
    import transformers

    print(
        f"python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )
    print(
        f"B={options.batch_size}, {options.in_flight} batches in flight, {options.updates} timed updates, {options.rounds} round(s); seconds per update\n"
    )
    header = f"{'workload':24} {'sync s':>7} {'async s':>7} {'lag':>5} {'ratio':>6} {'bound':>6}"
    rows = []
    for name, workload in (
        ("lognormal sigma 0.8", "{sigma: 0.8}"),
        ("lognormal sigma 1.3", "{sigma: 1.3}"),
        ("sigma 0.8, 50 ms tools", "{sigma: 0.8, tools: true}"),
        ("sigma 1.3, 50 ms tools", "{sigma: 1.3, tools: true}"),
    ):
        batch, threads = options.batch_size, f"engine.threads={options.sync_threads}"
        columns = []
        for _ in range(options.rounds):
            sync = measure(options, workload, "engine.mode=sync", f"rollout.in_flight={batch}", threads)
            free = measure(
                options,
                workload,
                f"rollout.in_flight={options.in_flight * batch}",
                "rollout.queue_depth=2",
                "rollout.max_policy_lag=null",
            )
            bound = sync.step / max(sync.idle, sync.learn)
            # By tokens, not updates: the first batches of an asynchronous run hold its short trajectories.
            ratio = (free.tokens / free.step) / (sync.tokens / sync.step)
            columns.append((sync.step, free.step, free.lag, ratio, bound))
        step, free_step, lag, ratio, bound = (statistics.median(c) for c in zip(*columns, strict=True))
        rows.append(f"{name:24} {step:7.3f} {free_step:7.3f} {lag:5.2f} {ratio:5.2f}x {bound:5.2f}x")
        print(rows[-1], flush=True)
    print("\n".join(["", header, *rows]))
    print(
        "\nratio: policy tokens trained per second, async / sync. bound: (g+t)/max(g,t) of the synchronous run, the "
        "most that pure overlap could give"
    )


if __name__ == "__main__":
    main()
