"""Between text and tokens: chat templates, and turns that are never encoded again."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from flashreinforce_molt.models import character_tokenizer
from flashreinforce_molt.rollout.codec import decode_turn, encode_observation, encode_prompt, stop_tokens_of

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes-like pieces with the merge a+b, so that decoding and encoding again changes the tokens."""
    pieces = ["<|im_start|>", "<|im_end|>", "<unk>", "ab", "\n", *"abcdefghijklmnopqrstuvwxyz -.\u2063"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", unk_token="<unk>")
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    made.chat_template = TEMPLATE
    return made


def test_text_prompts_begin_with_the_start_token() -> None:
    tokenizer = character_tokenizer("abc>")
    assert encode_prompt(tokenizer, "ab>") == [1, 4, 5, 7]


def test_chat_prompts_go_through_the_models_template() -> None:
    tokenizer = chat_tokenizer()
    tokens = encode_prompt(tokenizer, [{"role": "user", "content": "abc"}])
    assert tokenizer.decode(tokens) == "<|im_start|>user\nabc<|im_end|>\n<|im_start|>assistant\n"


def test_an_observation_continues_behind_the_sampled_end_of_turn() -> None:
    tokenizer = chat_tokenizer()
    stop = tokenizer.eos_token_id
    observation = [{"role": "tool", "content": "seven"}]
    tail = "\n<|im_start|>tool\nseven<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(encode_observation(tokenizer, observation, stop_token=stop)) == tail
    # a turn that was cut by a limit did not write its own end
    assert (
        tokenizer.decode(encode_observation(tokenizer, observation, stop_token=None)) == "<|im_end|>" + tail
    )


def test_the_conversation_equals_the_template_of_the_whole_conversation() -> None:
    tokenizer = chat_tokenizer()
    messages = [{"role": "user", "content": "abc"}]
    turn = [tokenizer.convert_tokens_to_ids(c) for c in ("d", "ab")] + [tokenizer.eos_token_id]
    observation = [{"role": "tool", "content": "x"}]
    pieces = (
        encode_prompt(tokenizer, messages)
        + turn
        + encode_observation(tokenizer, observation, stop_token=tokenizer.eos_token_id)
    )
    whole = tokenizer.apply_chat_template(
        [*messages, {"role": "assistant", "content": "dab"}, *observation],
        tokenize=False,
        add_generation_prompt=True,
    )
    assert pieces == tokenizer.encode(whole, add_special_tokens=False)


def test_sampled_tokens_differ_from_their_text_encoded_again() -> None:
    """The reason why the engine keeps what was sampled: this model may say a, b as two tokens."""
    tokenizer = chat_tokenizer()
    sampled = [tokenizer.convert_tokens_to_ids(c) for c in ("a", "b")]
    text = decode_turn(tokenizer, [*sampled, tokenizer.eos_token_id], frozenset({tokenizer.eos_token_id}))
    assert text == "ab"
    assert tokenizer.encode(text, add_special_tokens=False) != sampled


def test_end_tokens_come_from_tokenizer_and_generation_configuration() -> None:
    tokenizer = chat_tokenizer()
    eos = tokenizer.eos_token_id
    assert stop_tokens_of(tokenizer, None) == {eos}
    assert stop_tokens_of(tokenizer, [7, 9]) == {eos, 7, 9}
    assert stop_tokens_of(tokenizer, 7) == {eos, 7}


def test_text_that_the_tokenizer_cannot_write_is_refused_by_character() -> None:
    tokenizer = character_tokenizer("abc>")
    with pytest.raises(ValueError, match=r"does not know \['x', 'y'\]; add them to model.alphabet"):
        encode_prompt(tokenizer, "axy>")
    with pytest.raises(ValueError, match="does not know"):
        encode_observation(tokenizer, "!", stop_token=None)
