"""Checkpoints: flipped bytes, truncated, missing and foreign members, states that say something else."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from random import Random

from flashreinforce_molt.checkpoint import CheckpointError, RunState, newest_checkpoint, save_checkpoint
from flashreinforce_molt.config import Config, ModelConfig
from flashreinforce_molt.learners.torch_learner import TorchLearner
from flashreinforce_molt.models import build_policy
from flashreinforce_molt.rollout.ledger import Ledger
from fuzzing.case import ANSWER, REFUSED, STRANGE_VALUES, attempt, demand, flipped
from fuzzing.trajectories import sample as trajectory

TINY = {"model_type": "qwen2", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
FOREIGN = (
    "pytorch_model.bin",
    "added_tokens.json",
    "chat_template.jinja",
    "modeling_evil.py",
    "tokenizer.model",
)


@cache
def _template(folder: Path) -> Path:
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    policy = build_policy(ModelConfig(config=TINY | heads, alphabet="abc"), seed=0)
    learner = TorchLearner(policy.model, Config())
    for update in (1, 2):
        state = RunState(update, 7 * update, Ledger().state(), 1.5)
        save_checkpoint(folder / "sound", policy, learner, state, [trajectory(0), trajectory(1)], keep=2)
    return folder / "sound"


def case(rng: Random, folder: Path) -> str:
    """Two checkpoints, or one; the newest is damaged."""
    sound, place = _template(folder), folder / "checkpoints"
    shutil.rmtree(place, ignore_errors=True)
    alone = rng.random() < 0.5
    for name in ("update_000002",) if alone else ("update_000001", "update_000002"):
        shutil.copytree(sound / name, place / name)
    damaged = rng.random() < 0.9
    if damaged:
        _damage(place / "update_000002", rng)
    said: list[str] = []
    must = REFUSED if damaged and alone else ANSWER
    outcome, found = attempt(
        lambda: newest_checkpoint(place, said.append), (CheckpointError,), must=must, names=str(place)
    )
    demand(len(said) == damaged and all("update_000002" in line for line in said), f"said {said}")
    if found is not None:
        demand(found.state.update == (1 if damaged else 2), f"found {found.path}")
        demand([t.reward for t in found.waiting()] == [0.0, 0.5], "other trajectories wait")
    return REFUSED if said else outcome


def _damage(path: Path, rng: Random) -> None:
    kind = rng.randrange(6)
    member = rng.choice(sorted(path.iterdir()))
    if kind == 0:
        member.write_bytes(flipped(member.read_bytes(), rng))
    elif kind == 1:
        data = member.read_bytes()
        member.write_bytes(data[: rng.randrange(len(data) - 1)])  # the last newline of a state says nothing
    elif kind == 2:
        member.unlink()
    elif kind == 3:
        (path / rng.choice(FOREIGN)).write_bytes(rng.randbytes(9))
    elif kind == 4:
        text = rng.choice(["", "7", "[]", "null", "{}", "[" * 50_000, '{"format": 2}', "\x00"])
        (path / "state.json").write_text(text)
    else:
        state = json.loads((path / "state.json").read_text())
        name = rng.choice([*state])
        state[name] = rng.choice([value for value in STRANGE_VALUES if value != state[name]])
        (path / "state.json").write_text(json.dumps(state))
