"""A Megatron GPTModel of the shape that a Hugging Face Llama, Qwen2, Qwen2.5, Qwen3 or Qwen3-MoE configuration describes."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import HAVE_TE, get_gpt_decoder_block_spec
from megatron.core.transformer import TransformerConfig
from torch.nn import functional as F
from transformers import PreTrainedConfig

from flashreinforce_molt.config import SettingError
from flashreinforce_molt.learners.megatron.layout import MegatronLayout

_FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
NORMALISED_QUERIES = ("qwen3", "qwen3_moe")
"""Families that normalise queries and keys; Qwen2 gives them a bias instead, Llama neither."""


def validate_architecture(hf: PreTrainedConfig, layout: MegatronLayout) -> None:
    """Refuse, all at once, what this mapping does not reproduce exactly."""
    problems = []
    if hf.model_type not in _FAMILIES:
        problems.append(
            f"model_type={hf.model_type!r} has no Megatron mapping here; known: {', '.join(_FAMILIES)}"
        )
    else:
        rope = getattr(hf, "rope_parameters", None) or {}
        if rope.get("rope_type", "default") != "default":
            problems.append(f"rope_type={rope['rope_type']!r}: only the default rotary embedding is mapped")
        if getattr(hf, "use_sliding_window", False):
            problems.append("use_sliding_window=true: only full attention is mapped")
        if hf.hidden_act != "silu":
            problems.append(f"hidden_act={hf.hidden_act!r}: only silu is mapped")
        if getattr(hf, "attention_bias", False):
            problems.append("attention_bias=true: the output projection's bias is not mapped")
        if getattr(hf, "mlp_bias", False):
            problems.append("mlp_bias=true: biases of the feed-forward layers are not mapped")
        if getattr(hf, "attention_dropout", 0):
            problems.append(
                f"attention_dropout={hf.attention_dropout}: a policy gradient needs the policy sampled"
            )
        tp = layout.tensor_parallel
        for name in ("num_attention_heads", "num_key_value_heads"):
            if getattr(hf, name) % tp:
                problems.append(f"tensor parallel {tp} does not divide {name}={getattr(hf, name)}")
        if hf.num_hidden_layers % layout.pipeline_parallel:
            problems.append(
                f"pipeline parallel {layout.pipeline_parallel} does not divide num_hidden_layers={hf.num_hidden_layers}"
            )
        experts = getattr(hf, "num_experts", None)
        if layout.expert_parallel > 1 and (experts is None or experts % layout.expert_parallel):
            problems.append(f"expert parallel {layout.expert_parallel} does not divide num_experts={experts}")
        if experts is not None and tp > 1 and not layout.sequence_parallel:
            problems.append(
                "a mixture of experts with tensor parallel needs sequence_parallel=True (Megatron's rule)"
            )
    if problems:
        raise SettingError(*problems)


def padded_vocab_size(hf: PreTrainedConfig, layout: MegatronLayout) -> int:
    """The vocabulary that tensor-parallel ranks can share equally."""
    return -(-hf.vocab_size // layout.tensor_parallel) * layout.tensor_parallel


def transformer_config(
    hf: PreTrainedConfig,
    layout: MegatronLayout,
    *,
    dtype: torch.dtype,
    device: torch.device,
    recompute: bool = False,
) -> TransformerConfig:
    """The same architecture in Megatron's words, without dropout and without any auxiliary loss."""
    validate_architecture(hf, layout)
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    options: dict[str, Any] = {}
    if hf.model_type == "qwen3_moe":
        dense = set(hf.mlp_only_layers or ())
        options |= {
            "num_moe_experts": hf.num_experts,
            "moe_ffn_hidden_size": hf.moe_intermediate_size,
            "moe_router_topk": hf.num_experts_per_tok,
            # softmax over the chosen k equals the renormalised softmax over all
            "moe_router_pre_softmax": not hf.norm_topk_prob,
            "moe_router_dtype": "fp32",
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_layer_freq": [
                int(layer not in dense and (layer + 1) % hf.decoder_sparse_step == 0)
                for layer in range(hf.num_hidden_layers)
            ],
            "expert_model_parallel_size": layout.expert_parallel,
            "expert_tensor_parallel_size": 1,
        }
    if recompute:
        options |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        ffn_hidden_size=hf.intermediate_size,
        num_attention_heads=hf.num_attention_heads,
        num_query_groups=hf.num_key_value_heads,
        kv_channels=head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=hf.rms_norm_eps,
        qk_layernorm=hf.model_type in NORMALISED_QUERIES,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=hf.model_type == "qwen2",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=layout.tensor_parallel,
        context_parallel_size=layout.context_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        sequence_parallel=layout.sequence_parallel,
        variable_seq_lengths=layout.pipeline_parallel > 1,
        moe_token_dispatcher_type="alltoall",  # Megatron asks for it with variable lengths, experts or not
        calculate_per_token_loss=layout.calculate_per_token_loss,
        use_cpu_initialization=device.type == "cpu",
        **options,
    )


def build_model(
    config: TransformerConfig, hf: PreTrainedConfig, layout: MegatronLayout, layer_spec: Any = None
) -> Any:
    """This rank's part of the model, weights not set.

    With Transformer Engine installed its layers are used, else Megatron's own; `layer_spec` overrides both.
    """
    if layer_spec is None:
        layer_spec = get_gpt_decoder_block_spec(
            config, use_transformer_engine=HAVE_TE, normalization="RMSNorm"
        )
    rope = getattr(hf, "rope_parameters", None) or {}
    return GPTModel(
        config=config,
        transformer_layer_spec=layer_spec,
        vocab_size=padded_vocab_size(hf, layout),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=hf.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=int(rope.get("rope_theta", 10_000)),
    )
