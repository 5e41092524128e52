"""The NeMo face against the function that it wraps, in the real NeMo; skipped where the extra `[nemo]` is not installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("nemo.core", reason="needs nemo-toolkit[core]: pip install -e '.[nemo]'")

from hydra.utils import instantiate
from nemo.core.classes import Loss
from omegaconf import OmegaConf

from flashreinforce_molt.nemo import FlashReinforceLoss
from flashreinforce_molt.objective import flashreinforce_loss

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
OPTIONS = {"delta": 0.02, "negative_token_fraction": 0.5, "aggregation": "token-mean", "log_ratio_limit": 3.0}


def batch() -> dict[str, torch.Tensor]:
    """Five rows of four trajectories; one of them drifts far, two failed."""
    generator = torch.Generator().manual_seed(3)
    log_probs = -torch.rand(5, 7, generator=generator, dtype=torch.float64) - 0.05
    behavior = log_probs - 0.05 * torch.rand(5, 7, generator=generator, dtype=torch.float64)
    behavior[1] -= 3.0
    return {
        "log_probs": log_probs,
        "behavior_log_probs": behavior,
        "rewards": torch.tensor([1.0, 0.0, 0.25, 0.25, 0.0], dtype=torch.float64),
        "action_mask": torch.arange(7) < torch.tensor([7, 5, 3, 6, 1])[:, None],
        "entropies": torch.rand(5, 7, generator=generator, dtype=torch.float64),
        "failures": torch.tensor([False, True, False, False, True]),
        "trajectory_ids": torch.tensor([0, 1, 2, 2, 3]),
    }


def loss_and_gradient(compute, inputs):
    log_probs = inputs["log_probs"].clone().requires_grad_()
    loss, statistics = compute(**{**inputs, "log_probs": log_probs})
    loss.backward()
    return loss.detach(), log_probs.grad, statistics


def test_the_typed_loss_is_the_function() -> None:
    inputs = batch()
    typed = loss_and_gradient(FlashReinforceLoss(**OPTIONS), inputs)
    plain = loss_and_gradient(lambda **given: flashreinforce_loss(**given, **OPTIONS), inputs)
    assert torch.equal(typed[0], plain[0])
    assert torch.equal(typed[1], plain[1])
    assert typed[1].abs().sum() > 0
    assert typed[2].keys() == plain[2].keys()
    assert all(torch.equal(torch.as_tensor(typed[2][n]), torch.as_tensor(plain[2][n])) for n in plain[2])


def test_a_target_config_makes_the_loss_with_its_options() -> None:
    config = OmegaConf.create({"_target_": "flashreinforce_molt.nemo.FlashReinforceLoss", "delta": 0.5})
    made = instantiate(config)
    assert isinstance(made, Loss)
    assert made.options["delta"] == 0.5
    assert made.options["gate"] == "sequence"


def test_options_out_of_range_are_refused_before_any_batch() -> None:
    with pytest.raises(ValueError, match=r"delta=-1 must be a number, 0 or more"):
        FlashReinforceLoss(delta=-1)


def test_nemo_refuses_a_wrong_rank_and_we_a_wrong_size() -> None:
    compute = FlashReinforceLoss()
    rows = {name: batch()[name] for name in ("log_probs", "behavior_log_probs", "rewards", "action_mask")}
    with pytest.raises(TypeError, match="rewards"):
        compute(**{**rows, "rewards": rows["rewards"][:, None]})
    with pytest.raises(ValueError, match=r"rewards.*\[4\]"):
        compute(**{**rows, "rewards": rows["rewards"][:4]})
    with pytest.raises(TypeError, match=r"keyword|kwargs"):
        compute(*rows.values())


def test_the_hydra_entry_trains_a_recipe(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        "recipe=quickstart",
        f"output={run}",
        "settings.train.updates=2",
        "settings.train.batch_size=8",
        "settings.optim.lr=1e-6",
        "settings.warm_start.steps=0",
        "settings.evaluation.size=0",
        "settings.environment.options={dataset: spell_backward, parameters: {min_word_len: 3, max_word_len: 3}, "
        "template: '{word}>', lowercase: true}",
    ]
    done = hydra_entry(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    updates = [json.loads(line)["update"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert updates == [1, 2]
    assert OmegaConf.load(run / "config.yaml").optim.lr == 1e-6


def test_the_hydra_entry_refuses_unknown_settings_and_bad_values() -> None:
    unknown = hydra_entry("recipe=quickstart", "settings.train.updatez=2", "dry_run=true")
    assert unknown.returncode == 1
    assert "settings.train.updatez" in unknown.stderr
    bad = hydra_entry("recipe=quickstart", "settings.train.updates=-2", "dry_run=true")
    assert bad.returncode == 2
    assert "train.updates" in bad.stdout + bad.stderr


def hydra_entry(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "train_nemo.py", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)
