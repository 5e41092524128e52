"""A Qwen2 of 0.3 M parameters with a character tokenizer, saved where Molt, vLLM and AutoModel can load it."""

from __future__ import annotations

import json
from pathlib import Path

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,:?+-"
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}:{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)


def save_tiny_policy(folder: Path, seed: int = 0) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen2Config, Qwen2ForCausalLM

    vocabulary = {token: number for number, token in enumerate([*_SPECIAL, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(_SPECIAL)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _TEMPLATE,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=128,  # vLLM's CPU attention knows no head smaller than 32
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder
