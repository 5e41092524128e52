"""Building the policy."""

import pytest
import torch
from tiny_engine import TINY_MODEL, tiny_policy

from flashreinforce_molt.config import ModelConfig, SettingError
from flashreinforce_molt.models import build_policy, character_tokenizer


def test_every_character_is_one_token_and_comes_back() -> None:
    tokenizer = character_tokenizer("abc 123\n>")
    tokens = tokenizer.encode("a 1\n>c", add_special_tokens=False)
    assert len(tokens) == 6
    assert tokenizer.decode(tokens) == "a 1\n>c"
    assert tokenizer.encode("é", add_special_tokens=False) == [tokenizer.unk_token_id]


def test_a_seed_fixes_the_weights() -> None:
    a, b, c = (tiny_policy(seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)


def test_a_new_model_ends_on_the_tokenizers_end_token() -> None:
    policy = tiny_policy()
    assert policy.model.config.eos_token_id == policy.tokenizer.eos_token_id
    assert policy.model.config.vocab_size == len(policy.tokenizer)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"config": {"hidden_size": 8}}, "model.config has no model_type"),
        ({"config": {**TINY_MODEL, "vocab_size": 9}}, "vocab_size follows from model.alphabet"),
        ({"config": TINY_MODEL, "alphabet": "aab"}, r"model.alphabet names \['a'\] more than once"),
        ({"id": "/no/such/directory"}, r"model.id='/no/such/directory'"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(config: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build_policy(ModelConfig(**config), seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_sizee": 4}, r"model.config.hidden_sizee: qwen2 has no such key; nearest: hidden_size"),
        ({"model_type": "qwen22"}, r"model_type='qwen22' is no transformers family; nearest: .*qwen2"),
        ({"num_attention_heads": 3}, r"model.config cannot be built"),
    ],
)
def test_a_configuration_that_would_train_another_model_is_refused(change: dict, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build_policy(ModelConfig(config={**TINY_MODEL, **change}), seed=0)
