"""A small policy and decoder for tests of the rollout engine."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from flashreinforce_molt.config import ModelConfig
from flashreinforce_molt.models import Policy, build_policy
from flashreinforce_molt.rollout.generator import Generation, SlotGenerator
from flashreinforce_molt.rollout.sampling import Sampling, uniforms

TINY_MODEL = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,  # a spread distribution, so that mistakes show
    "tie_word_embeddings": True,
}


def tiny_policy(seed: int = 0, **changes: object) -> Policy:
    policy = build_policy(ModelConfig(config={**TINY_MODEL, **changes}), seed=seed)
    policy.model.eval()
    return policy


def tiny_generator(
    model: PreTrainedModel, *, slots: int = 4, stop: int = 2, **sampling: object
) -> SlotGenerator:
    return SlotGenerator(
        model, slots=slots, max_context=48, stop_tokens=frozenset({stop}), sampling=Sampling(**sampling)
    )


def generation(trajectory_id: int, prompt: list[int], budget: int, seed: int = 0) -> Generation:
    made = Generation(trajectory_id, list(prompt), uniforms(seed, trajectory_id, 40))
    made.turn_budget = budget
    return made


def run_to_end(generator: SlotGenerator) -> list[Generation]:
    """Decode until nothing is active; ended trajectories leave at once."""
    ended = []
    while generator.active:
        for done in generator.step():
            generator.leave(done)
            ended.append(done)
    return ended


@torch.no_grad()
def forward_log_probs(model: PreTrainedModel, tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
    """[N-1, V] log-probs of one full forward pass, without any cache."""
    logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1].float()
    return torch.log_softmax(logits / temperature, -1)


def recorded_and_forward(
    model: PreTrainedModel, done: Generation, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Recorded behaviour log-probs of a trajectory, and those of a full forward pass."""
    full = forward_log_probs(model, done.tokens, temperature)
    at = [i for i, chosen in enumerate(done.policy) if chosen]
    wanted = torch.stack([full[i - 1, done.tokens[i]] for i in at])
    return torch.tensor(done.log_probs), wanted
