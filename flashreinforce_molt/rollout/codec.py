"""From what an environment says to tokens, by the model's own tokenizer and chat template.

The model's turns are never decoded and encoded again: an observation is only ever appended to the tokens that
were sampled.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from flashreinforce_molt.environments.base import Chat, Message, Text

_MARK = "\u2063turn\u2063"
"""Stands for the model's turn while the text that a template writes behind it is found."""


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Text) -> list[int]:
    """Tokens that the model reads first: template and generation prompt for messages, a start token for text.

    Raises ValueError when there are tools and the model's template does not show them.
    """
    if isinstance(prompt, str):
        start = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
        return start + encode_text(tokenizer, prompt)
    return tokenizer.encode(prompt_text(tokenizer, prompt), add_special_tokens=False)


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of plain text. Raises ValueError that names characters which the tokenizer does not know."""
    tokens = tokenizer.encode(text, add_special_tokens=False)
    unknown = tokenizer.unk_token_id
    if unknown is not None and unknown in tokens:
        missing = sorted({c for c in text if unknown in tokenizer.encode(c, add_special_tokens=False)})
        raise ValueError(f"{text!r}: the tokenizer does not know {missing}; add them to model.alphabet")
    return tokens


def prompt_text(tokenizer: PreTrainedTokenizerBase, prompt: list[Message] | Chat) -> str:
    """The first messages, and the tools where there are some, by the model's own template."""
    chat = prompt if isinstance(prompt, Chat) else Chat(prompt)

    def rendered(tools: Any) -> str:
        template = tokenizer.apply_chat_template
        return str(template(chat.messages, tools=tools, tokenize=False, add_generation_prompt=True))

    if not chat.tools:
        return rendered(None)
    text = rendered([dict(tool) for tool in chat.tools])
    if text == rendered(None):
        raise ValueError(
            "the chat template shows no tools; use a model that was taught tool calls, or a format without schemas"
        )
    return text


def encode_observation(
    tokenizer: PreTrainedTokenizerBase, observation: Text, *, stop_token: int | None
) -> list[int]:
    """Tokens between the model's turn and its next one.

    `stop_token` is the token that ended the turn, None if the turn was cut by a limit; the template's own end
    of turn is then written as part of the observation.
    """
    if isinstance(observation, str):
        return encode_text(tokenizer, observation)
    tokens = tokenizer.encode(observation_text(tokenizer, observation), add_special_tokens=False)
    if stop_token is not None and tokens[:1] == [stop_token]:
        return tokens[1:]
    return tokens


def observation_text(tokenizer: PreTrainedTokenizerBase, observation: list[Message] | Chat) -> str:
    """What the model's own template writes behind its turn, the end of the turn included."""
    if isinstance(observation, Chat):
        raise ValueError("tools belong to the first messages of an episode, not to an observation")
    opening: list[Message] = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _MARK}]
    text = tokenizer.apply_chat_template(opening + observation, tokenize=False, add_generation_prompt=True)
    _, mark, tail = str(text).rpartition(_MARK)
    if not mark:
        raise ValueError("the chat template drops or rewrites the assistant's text; it cannot be continued")
    return tail


def decode_turn(tokenizer: PreTrainedTokenizerBase, tokens: list[int], stop_tokens: frozenset[int]) -> str:
    """The text of a turn for the environment, without its end token."""
    if tokens and tokens[-1] in stop_tokens:
        tokens = tokens[:-1]
    return str(tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def stop_tokens_of(
    tokenizer: PreTrainedTokenizerBase, generation_eos: int | list[int] | None
) -> frozenset[int]:
    """Tokens that end a turn: the tokenizer's and those of the model's generation configuration."""
    listed = generation_eos if isinstance(generation_eos, list) else [generation_eos]
    found = frozenset(token for token in [*listed, tokenizer.eos_token_id] if token is not None)
    if not found:
        raise ValueError(
            "model.id: neither the tokenizer nor the generation configuration names an end token"
        )
    return found
