"""Supervised steps before the first update, for models initialised here. Not part of the method."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from flashreinforce_molt.config import Config, SettingError
from flashreinforce_molt.environments.base import Demonstration, Suite, Task
from flashreinforce_molt.models import Policy
from flashreinforce_molt.rollout.codec import encode_observation, encode_prompt, encode_text

ORDER_SEED_OFFSET = 1_000_000
"""Keeps the warm start's tasks apart from the data order of the run with the same seed."""


class Demonstrator(Protocol):
    """A suite that can show answers."""

    def demonstration(self, task: Task, rng: random.Random, correct: bool) -> Demonstration: ...


def warm_start(
    policy: Policy,
    suite: Suite,
    config: Config,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Imitate demonstrations, a share of them wrong on purpose; returns the last loss in nats per token.

    Teaches the format, so that a reward can occur at all. `on_step` receives the step and its loss.
    Raises SettingError when the environment has no demonstrations.
    """
    settings = config.warm_start
    demonstrate = getattr(suite, "demonstration", None)
    if demonstrate is None:
        raise SettingError(
            f"warm_start.steps={settings.steps}: environment {config.environment.name} has no demonstrations; use 0"
        )
    rng = random.Random(config.seed)
    tasks = suite.training_tasks(config.seed + ORDER_SEED_OFFSET)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0
    )
    policy.model.train()
    loss = float("nan")
    for step in range(settings.steps):
        first = step * settings.batch_size
        examples = [
            demonstrate(tasks[first + i], rng, rng.random() < settings.correct_fraction)
            for i in range(settings.batch_size)
        ]
        input_ids, labels = _collate(policy, examples)
        output = policy.model(input_ids=input_ids, labels=labels)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = output.loss.item()
        on_step(step + 1, loss)
    return loss


def _collate(policy: Policy, examples: list[Demonstration]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded token ids and labels [B, T]; what is not an action carries the ignored label -100."""
    tokenizer = policy.tokenizer
    rows = []
    for example in examples:
        pieces = [(encode_prompt(tokenizer, example.prompt), False)]
        for action, observation in example.turns:
            pieces.append((_action(tokenizer, action), True))
            stop_token = tokenizer.eos_token_id
            pieces.append((encode_observation(tokenizer, observation, stop_token=stop_token), False))
        pieces.append((_action(tokenizer, example.answer), True))
        rows.append([(token, imitated) for tokens, imitated in pieces for token in tokens])
    width = max(map(len, rows))
    input_ids = np.full((len(rows), width), tokenizer.pad_token_id)
    labels = np.full((len(rows), width), -100)
    for i, row in enumerate(rows):
        input_ids[i, : len(row)] = [token for token, _ in row]
        labels[i, : len(row)] = [token if imitated else -100 for token, imitated in row]
    device = policy.model.device
    return torch.from_numpy(input_ids).to(device), torch.from_numpy(labels).to(device)


def _action(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return [*encode_text(tokenizer, text), tokenizer.eos_token_id]
