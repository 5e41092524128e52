"""The sizes of the models in the recipes, as their published `config.json` gives them, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """A decoder as plans need it. `experts` 0 means dense; `source` says where the numbers were read."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int
    tied_embeddings: bool
    attention_bias: bool
    qk_norm: bool = False
    experts: int = 0
    experts_per_token: int = 0
    published_parameters: int | None = None
    source: str = ""

    @property
    def moe(self) -> bool:
        return self.experts > 0

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of one layer; 0 for a dense model."""
        return self.experts * 3 * self.hidden * self.intermediate

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: attention, two norms, and a gated MLP or a router with its experts."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys)
        if self.attention_bias:
            attention += queries + 2 * keys
        if self.qk_norm:
            attention += 2 * self.head_dim
        dense = 3 * self.hidden * self.intermediate
        mlp = self.expert_parameters + self.hidden * self.experts if self.moe else dense
        return attention + mlp + 2 * self.hidden

    @property
    def parameters(self) -> int:
        return self.embedding_parameters + self.layers * self.layer_parameters + self.hidden

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        idle = self.experts - self.experts_per_token
        return self.parameters - self.layers * idle * 3 * self.hidden * self.intermediate

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, in 16-bit numbers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


_QWEN2_1B5: dict[str, Any] = {
    "hidden": 1536,
    "layers": 28,
    "heads": 12,
    "kv_heads": 2,
    "head_dim": 128,
    "intermediate": 8960,
    "vocab": 151_936,
    "attention_bias": True,
}

MODEL_SHAPES: Mapping[str, ModelShape] = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": ModelShape(
        **_QWEN2_1B5,
        positions=131_072,
        tied_embeddings=False,
        published_parameters=1_777_088_000,
        source="config.json of the model repository",
    ),
    "Qwen/Qwen2.5-Math-1.5B": ModelShape(
        **_QWEN2_1B5,
        positions=4_096,
        tied_embeddings=True,
        published_parameters=1_543_714_304,
        source="config.json of the model repository",
    ),
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(
        hidden=3584,
        layers=28,
        heads=28,
        kv_heads=4,
        head_dim=128,
        intermediate=18_944,
        vocab=152_064,
        attention_bias=True,
        positions=32_768,
        tied_embeddings=False,
        published_parameters=7_615_616_512,
        source="config.json of the model repository",
    ),
    "Qwen/Qwen3-30B-A3B": ModelShape(
        hidden=2048,
        layers=48,
        heads=32,
        kv_heads=4,
        head_dim=128,
        intermediate=768,
        vocab=151_936,
        attention_bias=False,
        qk_norm=True,
        experts=128,
        experts_per_token=8,
        positions=40_960,
        tied_embeddings=False,
        published_parameters=30_532_122_624,
        source="config.json of the model repository; intermediate is moe_intermediate_size",
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelShape(
        hidden=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        intermediate=1536,
        vocab=49_152,
        attention_bias=False,
        positions=8_192,
        tied_embeddings=True,
        published_parameters=134_515_008,
        source="config.json of the model repository",
    ),
}


def shape_of(model_id: str | None, config: Mapping[str, Any]) -> ModelShape | None:
    """The shape of a known model, or of a small `model.config`; None when nothing is known about it."""
    if model_id is not None:
        return MODEL_SHAPES.get(model_id)
    try:
        heads = int(config["num_attention_heads"])
        return ModelShape(
            hidden=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads", heads)),
            head_dim=int(config.get("head_dim", int(config["hidden_size"]) // heads)),
            intermediate=int(config["intermediate_size"]),
            vocab=int(config.get("vocab_size", 64)),
            positions=int(config.get("max_position_embeddings", 32_768)),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=config.get("model_type") == "qwen2",
            source="model.config",
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
