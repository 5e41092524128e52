"""Parameter counts of the plan against the models that transformers builds (without memory for their weights)."""

import pytest

from flashreinforce_molt.config.model_shapes import MODEL_SHAPES

pytestmark = pytest.mark.slow


def configuration(shape):
    """The transformers configuration of a shape."""
    from transformers import LlamaConfig, Qwen2Config, Qwen3MoeConfig

    common = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": shape.tied_embeddings,
    }
    if shape.moe:
        return Qwen3MoeConfig(
            **common,
            head_dim=shape.head_dim,
            moe_intermediate_size=shape.intermediate,
            num_experts=shape.experts,
            num_experts_per_tok=shape.experts_per_token,
            decoder_sparse_step=1,
        )
    kind = Qwen2Config if shape.attention_bias else LlamaConfig
    return kind(**common, intermediate_size=shape.intermediate)


@pytest.mark.parametrize("model", MODEL_SHAPES)
def test_the_formula_counts_what_transformers_builds(model):
    import torch
    from transformers import AutoModelForCausalLM

    shape = MODEL_SHAPES[model]
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(configuration(shape))
    assert sum(weights.numel() for weights in built.parameters()) == shape.parameters
