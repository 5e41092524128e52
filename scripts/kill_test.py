"""Kill a run again and again, resume it each time, and count what became of every prompt.

    python scripts/kill_test.py --kills 50 --output runs/kill_test

Every round waits a random while after the run has taken an update, then sends SIGKILL to a rollout worker, to the
learner, or to the whole process group. A killed worker is replaced by the run itself; after the others the run is
resumed. At the end the run is resumed once more and goes to its last update. What must hold: every trajectory
is trained exactly once or counted under a named reason, no token older than the bound is trained, and `metrics.jsonl`
has each update once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_LAG, BATCH = 2, 16
RUN = (
    "warm_start.steps=0",
    "evaluation.size=0",
    "telemetry.live=never",
    "telemetry.tensorboard=false",
    f"telemetry.dump_trajectories={BATCH}",
    f"train.batch_size={BATCH}",
    "rollout.in_flight=24",
    f"rollout.max_policy_lag={MAX_LAG}",
    "engine.workers=2",
    "engine.max_worker_restarts=2",
    "checkpoint.every=3",
    "checkpoint.keep=3",
)
TARGETS = ("worker", "learner", "group")


@dataclass(frozen=True)
class Fates:
    """What became of the trajectories 0 .. `position` - 1."""

    position: int
    trained: int
    trained_twice: int
    dropped: dict[str, int]
    unsettled: int
    oldest_lag: float
    updates: list[int]

    def faults(self, updates: int) -> list[str]:
        """Promises that were broken, in words."""
        faults = []
        if self.trained_twice:
            faults.append(f"{self.trained_twice} trajectories were trained twice")
        if self.trained + sum(self.dropped.values()) + self.unsettled != self.position:
            faults.append(f"the fates do not add up to {self.position} issued trajectories")
        if self.oldest_lag > MAX_LAG:
            faults.append(f"a token of lag {self.oldest_lag} was trained; the bound is {MAX_LAG}")
        if self.updates != list(range(1, updates + 1)):
            faults.append(f"metrics.jsonl has the updates {self.updates}")
        return faults


def begin(output: Path, updates: int) -> subprocess.Popen[bytes]:
    """Start the run, or go on with it, in a process group of its own."""
    command = [
        sys.executable,
        str(ROOT / "scripts/train_molt.py"),
        "--recipe",
        "quickstart",
        "--output",
        str(output),
    ]
    for setting in (*RUN, f"train.updates={updates}"):
        command += ["--set", setting]
    if any((output / "checkpoints").glob("update_*")):
        command.append("--resume")
    elif output.exists():
        output.rename(output.with_name(f"{output.name}.before_checkpoint_{time.time_ns()}"))
    log = output.with_name(f"{output.name}.log").open("ab")
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def kill_once(run: subprocess.Popen[bytes], output: Path, target: str, rng: random.Random) -> bool:
    """Send one SIGKILL after the next update; False when the run ended before."""
    seen = _updates(output)
    while _updates(output) == seen:
        if run.poll() is not None:
            return False
        time.sleep(0.02)
    time.sleep(rng.uniform(0, 1.5))
    workers = worker_pids(run.pid)
    if run.poll() is not None or (target == "worker" and not workers):
        return False
    if target == "group":
        os.killpg(run.pid, signal.SIGKILL)
    else:
        os.kill(run.pid if target == "learner" else rng.choice(workers), signal.SIGKILL)
    if target != "worker":
        run.wait()
        _wait_for_orphans(run.pid)
    return True


def fates(output: Path) -> Fates:
    """Read them from the run directory: the trained batches themselves, the newest ledger, and the metrics."""
    from flashreinforce_molt.checkpoint import newest_checkpoint
    from flashreinforce_molt.rollout.ledger import Ledger
    from flashreinforce_molt.trajectory import load_trajectories

    trained = Counter(
        trajectory.trajectory_id
        for path in (output / "trajectories").glob("update_*.safetensors")
        for trajectory in load_trajectories(path)
    )
    state = newest_checkpoint(output / "checkpoints", on_damage=print).state
    ledger = Ledger.from_state(state.ledger)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return Fates(
        position=state.position,
        trained=len(trained),
        trained_twice=sum(count > 1 for count in trained.values()),
        dropped=dict(ledger.dropped),
        unsettled=len(ledger.unsettled(state.position)),
        oldest_lag=max(line["policy_lag_max"] for line in lines),
        updates=[line["update"] for line in lines],
    )


def kill_test(output: Path, kills: int, updates: int, seed: int) -> tuple[Fates, Counter[str]]:
    """Kill a run `kills` times and let it end; returns the fates and the kills by target."""
    rng, done = random.Random(seed), Counter()
    run = begin(output, updates)
    while done.total() < kills:
        target = TARGETS[done.total() % 3] if done.total() < 3 else rng.choice(TARGETS)
        if kill_once(run, output, target, rng):
            done[target] += 1
            print(f"kill {done.total()}: {target}, after update {_updates(output)}", flush=True)
        if run.poll() is not None:
            if _updates(output) >= updates:
                break
            run = begin(output, updates)
    while run.wait() != 0:
        run = begin(output, updates)
    return fates(output), done


def _updates(output: Path) -> int:
    path = output / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    return parents


def worker_pids(learner: int) -> list[int]:
    """Rollout workers: children of the learner's fork server."""
    parents = _parents()
    return [pid for pid, parent in parents.items() if parents.get(parent) == learner]


def _wait_for_orphans(group: int) -> None:
    """Return when no process of the group is left; what outlives its learner is a fault."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(_group(pid) == group for pid in _parents()):
            return
        time.sleep(0.05)
    raise RuntimeError(f"processes of group {group} outlived their learner by 30 s")


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument(
        "--updates", type=int, default=0, help="length of the run; default: 12 for every kill"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="run directory")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    updates = options.updates or 12 * options.kills
    began = time.monotonic()
    found, done = kill_test(options.output, options.kills, updates, options.seed)
    print(
        f"\n{done.total()} kills ({dict(done)}) in {time.monotonic() - began:.0f} s, {updates} updates of {BATCH}"
    )
    print(
        f"issued {found.position}: trained {found.trained}, dropped {found.dropped}, not yet settled {found.unsettled}"
    )
    print(f"oldest token that was trained: lag {found.oldest_lag:g} of {MAX_LAG} allowed")
    faults = found.faults(updates)
    print("\n".join(faults) or "every trajectory was trained once or counted; no update is missing or double")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
