"""The real parser and checks of molt-rl 0.2.1 against the review, for every recipe and variant.

    python -m pytest -m slow tests/integration/real_molt/test_real_parser.py

Neither torch nor Ray is imported, except by the test of the late errors, which is skipped without them.
"""

import importlib.util
import random
import subprocess
import sys
import types
from pathlib import Path

import pytest
from molt_rows import BASE, ROWS, SILENT
from published import ON_MOLT, review_of

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.doctor.molt_parser import flat, parser_problems
from flashreinforce_molt.molt.cli_block import parse_molt_command
from flashreinforce_molt.molt.interface import arguments, molt_options
from flashreinforce_molt.review.molt_rules import predict, refusals

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("molt") is None, reason="needs molt-rl 0.2.1"),
]
ROOT = Path(__file__).resolve().parents[3]

LATE = {
    "binary_kl + geo",
    "seq + clip",
    "seq + trunc",
    "binary_kl + default band",
    "cispo without a ceiling",
    "dual clip",
}
"""Rows that Molt's parser accepts and its loss refuses after the models are placed."""
ACCEPTED = {
    "packing + FA2",
    "packing + our loss",
    "batch not divisible",
    "KL with the default reference",
    "temperature 0",
    "queue 0",
    "score centering beside the gate",
    "replay of saved batches",
    "full offload on one rank",
}
"""Rows that pass Molt's checks and go wrong at run time, or are no part of the method."""


@pytest.fixture(autouse=True)
def _router_replay(monkeypatch):
    """Molt imports AutoModel to see whether it knows routing replay; its absence is not what is tested here."""
    if importlib.util.find_spec("nemo_automodel") is None:
        path = "nemo_automodel"
        for part in ("", ".components", ".moe", ".router_replay"):
            path += part
            monkeypatch.setitem(sys.modules, path, types.ModuleType(path))


def taken(flags):
    return dict(flat(parse_molt_command(arguments(flags)).args))


def test_the_committed_description_is_that_of_the_installed_package():
    done = subprocess.run(
        [sys.executable, "scripts/describe_molt.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("names", ON_MOLT, ids="+".join)
def test_molt_takes_every_experiment_and_makes_of_it_what_the_review_says(names):
    assert parser_problems(review_of(*names)) == []


@pytest.mark.parametrize(
    "names",
    [("qwen_math",), ("r1", "gate_5e3"), ("moe", "trust_ablation"), ("alfworld", "optim.lr=2e-6")],
    ids="+".join,
)
def test_the_base_method_by_molts_own_flags_is_taken_too(names):
    words = ("molt.native=false", "objective.negative_token_fraction=1")
    assert parser_problems(review_of(*names, *words)) == []


@pytest.mark.parametrize("row", ROWS)
def test_molt_does_with_each_row_what_the_table_says(row):
    flags = {**BASE, **ROWS[row][0]}
    if row in LATE | ACCEPTED:
        taken(flags)
    elif row == "distillation":
        with pytest.raises(SettingError, match="the teacher checkpoint"):
            taken(flags)
    else:
        with pytest.raises(SettingError):
            taken(flags)


@pytest.mark.parametrize("row", SILENT)
def test_molt_changes_silently_what_the_table_says(row):
    changes, (name, value) = SILENT[row]
    flags = {**BASE, **changes}
    if row == "dynamic batch + packing":
        flags["fsdp.attn_implementation"] = "te"
    assert flags.get(name, molt_options()[name].default) != value
    assert taken(flags)[name] == value


def test_late_errors_are_real():
    pytest.importorskip("torch")
    pytest.importorskip("torchdata")
    from molt.models.loss import PolicyLoss

    for row in sorted(LATE):
        v = predict({**BASE, "actor.loss_mode": "ppo", **ROWS[row][0]})[0]
        with pytest.raises((ValueError, AssertionError)):
            PolicyLoss(
                clip_eps_low=v["actor.eps_clip_low_high"][0],
                clip_eps_high=v["actor.eps_clip_low_high"][1],
                dual_clip=v["actor.dual_clip"],
                loss_mode=v["actor.loss_mode"],
                is_correction_level=v["algo.advantage.is_correction_level"],
                is_correction_mode=v["algo.advantage.is_correction_mode"],
                is_correction_threshold=v["algo.advantage.is_correction_threshold"],
                is_correction_gating=v["algo.advantage.is_correction_gating"],
            )


TRIED = {
    "rollout.top_p": [1.0, 0.9],
    "train.async_queue_size": [1, 4],
    "train.partial_rollout_enable": [True, False],
    "rollout.vllm_generate_batch_size": [16, 2048],
    "rollout.n_samples_per_prompt": [1, 4],
    "algo.advantage.is_correction_level": ["off", "token", "seq"],
    "algo.advantage.is_correction_threshold": [[0.003], [0.0, 1.0]],
    "algo.advantage.estimator": ["flash_trajectory", "flash_reinforce", "grpo", "rloo", "reinforce"],
    "algo.kl.ref": ["model", "rollout"],
    "algo.kl.use_loss": [True, False],
    "algo.kl.estimator": ["k1", "k3"],
    "algo.dynamic_filtering_enable": [True, False],
    "train.routing_replay": [True, False],
    "vllm.enable_prefix_caching": [True, False],
    "vllm.mtp_num_speculative_tokens": [0, 1],
    "fsdp.packing_samples": [True, False],
    "fsdp.attn_implementation": ["sdpa", "te", "flash_attention_2"],
    "train.dynamic_batch_enable": [True, False],
    "train.max_epochs": [1, 2],
    "data.max_images_per_prompt": [0, 2],
    "rollout.max_tokens_per_gpu": [1000],
    "eval.batch_size": [0, 8],
    "reward.overlong_buffer_len": [100.0],
    "reward.stop_properly_penalty_coef": [0.5, 2.0],
    "fsdp.pp_size": [1, 2],
    "rollout.batch_size": [2, 128],
    "actor.num_gpus_per_node": [1, 4, 8],
}


def test_whatever_molt_refuses_is_refused_before_and_what_it_takes_is_predicted():
    """400 random commands: no command passes our rules and fails Molt's, and every field is foretold."""
    chance = random.Random(0)
    accepted = 0
    for _ in range(400):
        changes = {name: chance.choice(values) for name, values in TRIED.items() if chance.random() < 0.12}
        flags = {**BASE, **changes}
        values, _ = predict(flags)
        ours = refusals(values)
        try:
            real = taken(flags)
        except SettingError:
            real = None
        if real is None:
            assert ours, changes
            continue
        accepted += 1
        expected = {
            name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
        }
        differing = {name: (real[name], expected[name]) for name in real if real[name] != expected[name]}
        differing.pop("logger.wandb.run_name", None)
        assert differing == {}, changes
    assert accepted > 50


def test_a_wrong_prediction_would_be_told(monkeypatch):
    review = review_of("r1")
    monkeypatch.setattr(
        "flashreinforce_molt.doctor.molt_parser.predict",
        lambda flags: ({**predict(flags)[0], "train.seed": 7}, []),
    )
    assert parser_problems(review) == ["Molt takes train.seed=0, the review says 7"]
