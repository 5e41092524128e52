"""Tiny Hugging Face models, their batch, and one rank of the Megatron learner for them."""

from __future__ import annotations

import os

import torch
from cases import VOCABULARY, special_batch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from flashreinforce_molt.config import Config, ModelConfig, ObjectiveConfig, OptimConfig, TrainConfig
from flashreinforce_molt.learners.scoring import score

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
MODELS = {
    "llama, tied": LlamaConfig(**COMMON | {"num_key_value_heads": 2}, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**COMMON, tie_word_embeddings=False),
    "qwen2, tied": Qwen2Config(**COMMON, tie_word_embeddings=True),
    "qwen2, tied, odd vocabulary": Qwen2Config(
        **COMMON | {"vocab_size": VOCABULARY + 1}, tie_word_embeddings=True
    ),
    "qwen3": Qwen3Config(**COMMON | {"num_key_value_heads": 2}, head_dim=16, tie_word_embeddings=False),
    "qwen3_moe": Qwen3MoeConfig(
        **COMMON,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=True,
        tie_word_embeddings=False,
    ),
    "qwen3_moe, softmax over all": Qwen3MoeConfig(
        **COMMON,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=False,
        mlp_only_layers=[0],
    ),
}


def hf_model(name: str, dtype: torch.dtype = torch.float32):
    """The same weights for the same name; biases and norms far from their trivial start."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(MODELS[name], attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.normal_(1.0 if "norm" in parameter_name else 0.0, 0.3)
            elif "embed" not in parameter_name:
                parameter.mul_(5)  # so that attention and experts matter
    return model.to(dtype)


def config(
    objective: dict, *, micro_batch_size: int | None = None, dtype: str = "float32", **optim
) -> Config:
    return Config(
        model=ModelConfig(dtype=dtype),
        objective=ObjectiveConfig(**objective),
        optim=OptimConfig(**{"lr": 1e-3, "schedule": "constant", "warmup_fraction": 0.0, **optim}),
        train=TrainConfig(
            updates=10, batch_size=8, micro_batch_size=micro_batch_size, logprob_chunk_tokens=7
        ),
    )


def batch_for(model):
    def log_probs(rows):
        with torch.no_grad():
            return score(model, rows, temperature=1.0, chunk_tokens=64, with_entropy=False)[0]

    return special_batch(log_probs)


def megatron_learner(name: str, settings: Config, layout, model=None):
    """This rank's learner with the weights of `hf_model(name)`."""
    from cpu_megatron import cpu_layer_spec, on_cpu

    from flashreinforce_molt.learners.megatron import MegatronLearner, initialize_parallel

    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    groups = initialize_parallel(layout)
    on_cpu()
    special = layout.sequence_parallel or layout.context_parallel > 1
    learner = MegatronLearner(
        MODELS[name],
        settings,
        layout,
        groups=groups,
        device=torch.device("cpu"),
        layer_spec=cpu_layer_spec if special else None,
    )
    weights = dict((model or hf_model(name)).named_parameters())
    learner.load_weights(lambda hf_name: weights[hf_name].detach())
    return learner
