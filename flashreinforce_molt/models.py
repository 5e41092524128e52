"""Building the policy: a Hugging Face model by id or directory, or a small one from scratch."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from flashreinforce_molt.config import ModelConfig, SettingError
from flashreinforce_molt.rollout.slot_attention import SLOT_ATTENTION


@dataclass(frozen=True)
class Policy:
    """A model with the tokenizer that belongs to it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """One token for each character of `alphabet`, and <pad>, <s>, </s>, <unk> before them."""
    repeated = sorted({c for c in alphabet if alphabet.count(c) > 1})
    if repeated:
        raise SettingError(f"model.alphabet names {repeated} more than once; every character needs one token")
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *alphabet])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )


def build_policy(config: ModelConfig, *, seed: int, device: str = "cpu") -> Policy:
    """Load `model.id`, or initialise `model.config` with `seed`.

    Raises SettingError when the model cannot be found or the configuration cannot be built.
    """
    dtype = getattr(torch, config.dtype)
    if config.id is None:
        policy = _from_scratch(config, seed)
    else:
        policy = _from_hub(config)
    module: nn.Module = policy.model  # the transformers wrapper of `to` hides its signature
    module.to(device=torch.device(device), dtype=dtype)
    return policy


def load_policy(path: Path, config: ModelConfig, *, device: str = "cpu") -> Policy:
    """The policy of a checkpoint directory, in the precision that `config` asks for."""
    saved = replace(config, id=str(path), revision=None, config={})
    return build_policy(saved, seed=0, device=device)


def rollout_model(config: PreTrainedConfig, dtype: str, device: str) -> PreTrainedModel:
    """A model of the policy's shape for a rollout worker; its weights arrive from the weight store."""
    model = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, dtype), attn_implementation=SLOT_ATTENTION
    )
    return model.to(device).eval()


def _from_scratch(config: ModelConfig, seed: int) -> Policy:
    tokenizer = character_tokenizer(config.alphabet)
    values = dict(config.config)
    if "model_type" not in values:
        raise SettingError("model.config has no model_type; name a transformers family, such as qwen2")
    if "vocab_size" in values:
        raise SettingError("model.config.vocab_size follows from model.alphabet; remove it")
    _validate_config_keys(values)
    values |= {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    try:
        architecture = AutoConfig.for_model(**values)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(architecture, attn_implementation=config.attention)
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 2, dtype=torch.long))  # sizes that do not fit show here
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise SettingError(f"model.config cannot be built by transformers: {error}") from error
    return Policy(model, tokenizer)


def _validate_config_keys(values: dict[str, object]) -> None:
    """transformers keeps unknown keys without a word; a misspelt size must not train another model."""
    family = str(values["model_type"])
    if family not in CONFIG_MAPPING:
        near = difflib.get_close_matches(family, list(CONFIG_MAPPING), n=3, cutoff=0.3)
        raise SettingError(
            f"model.config.model_type={family!r} is no transformers family; nearest: {', '.join(near)}"
        )
    known = set(CONFIG_MAPPING[family]().to_dict()) | {"model_type", "head_dim", "rope_theta", "rope_scaling"}
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=3, cutoff=0.3)
            raise SettingError(f"model.config.{key}: {family} has no such key; nearest: {', '.join(near)}")


def _from_hub(config: ModelConfig) -> Policy:
    assert config.id is not None
    where = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.id, **where)
        model = AutoModelForCausalLM.from_pretrained(
            config.id,
            dtype=torch.float32,
            attn_implementation=config.attention,
            use_safetensors=True,
            **where,
        )
    except (OSError, ValueError) as error:
        raise SettingError(
            f"model.id={config.id!r} (model.revision={config.revision!r}) cannot be loaded: {error}"
        ) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return Policy(model, tokenizer)
