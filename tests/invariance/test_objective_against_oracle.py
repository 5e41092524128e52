"""The vectorised loss and its autograd gradient against loops over Python floats, in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from objective_oracle import oracle, random_batch

from flashreinforce_molt import flashreinforce_loss

SETTINGS = {
    "sample mean": {},
    "through the ratio": {"ratio_gradient": "through"},
    "clamped": {"log_ratio_limit": 0.2},
    "clamped through the ratio": {"log_ratio_limit": 0.2, "ratio_gradient": "through"},
    "token mean": {"aggregation": "token-mean"},
    "constant length": {"aggregation": "constant-length", "constant_length": 11},
    "token gate": {"gate": "token"},
    "no gate": {"gate": "none"},
    "no importance correction": {"importance_correction": False, "ratio_gradient": "through"},
    "failure filter": {"negative_token_fraction": 0.28},
    "failure filter and token gate": {
        "negative_token_fraction": 0.5,
        "gate": "token",
        "aggregation": "token-mean",
    },
    "nothing of a failure": {"negative_token_fraction": 0.0},
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_loss_gradient_and_stats_equal_the_loops(setting):
    seen_admission = set()
    for seed in range(50):
        batch = random_batch(seed)
        options = {"delta": (0.0, 5e-3, 2e-2, 5e-2, math.inf)[seed % 5]} | setting
        expected = oracle(batch, **options)
        filtering = ("entropies", "failures") if "negative_token_fraction" in setting else ()
        inputs = batch.inputs(*filtering)
        inputs["log_probs"].requires_grad_()

        loss, stats = flashreinforce_loss(**inputs, **options)
        (gradient,) = torch.autograd.grad(loss, inputs["log_probs"])

        close = {"rtol": 1e-10, "atol": 1e-13}
        torch.testing.assert_close(loss.item(), expected.loss, **close)
        torch.testing.assert_close(gradient, torch.tensor(expected.gradient, dtype=torch.float64), **close)
        assert stats["trajectory_ids"].tolist() == expected.order
        assert stats["admitted"].tolist() == expected.admitted
        assert stats["policy_tokens"].item() == batch.action_mask.sum().item()
        for name in ("retained_tokens", "clamped_tokens"):
            assert stats[name].item() == getattr(expected, name), name
        for name in ("advantages", "sequence_kl", "acceptance_rate", "max_ratio", "top_token_share"):
            torch.testing.assert_close(stats[name].tolist(), getattr(expected, name), **close, msg=name)
        assert not any(value.requires_grad for value in stats.values())
        seen_admission.update(expected.admitted)
    if setting.get("gate") != "none" and setting.get("importance_correction", True):
        assert seen_admission == {True, False}


@pytest.mark.parametrize("aggregation", ["sample-mean", "token-mean", "constant-length"])
def test_both_ratio_forms_have_one_gradient_inside_the_clamp(aggregation):
    for seed, limit in itertools.product(range(30), (None, 30.0)):
        gradients = []
        for form in ("detached", "through"):
            inputs = random_batch(seed, spread=2.0).inputs()
            inputs["log_probs"].requires_grad_()
            loss, _ = flashreinforce_loss(
                **inputs,
                delta=math.inf,
                ratio_gradient=form,
                log_ratio_limit=limit,
                aggregation=aggregation,
                constant_length=7,
            )
            gradients += torch.autograd.grad(loss, inputs["log_probs"])
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=0)
