"""Log-probs and entropies of recorded tokens under the learner, without the logits of the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flashreinforce_molt.logprobs import chosen_log_probs_and_entropy, chunked_log_probs_and_entropy
from flashreinforce_molt.trajectory import PaddedRows

_LOGIT_TRANSFORMS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Configuration fields of models that change logits after the output layer."""


def score(
    model: PreTrainedModel, rows: PaddedRows, *, temperature: float, chunk_tokens: int, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """log pi [R, T-1] of every policy token, differentiable, 0 in other slots; entropies alike, detached.

    Only policy tokens reach the output layer, `chunk_tokens` of them at a time.
    """
    mask = rows.action_mask
    targets = rows.input_ids[:, 1:][mask]
    inputs = {
        "input_ids": rows.input_ids[:, :-1],
        "attention_mask": rows.attention_mask[:, :-1].long(),
        "position_ids": rows.position_ids[:, :-1],
        "use_cache": False,
    }
    head = model.get_output_embeddings()
    if any(getattr(model.config, name, None) not in (None, 1, 1.0) for name in _LOGIT_TRANSFORMS):
        logits = model(**inputs).logits[mask]
        chosen, entropy = chosen_log_probs_and_entropy(
            logits, targets, temperature=temperature, with_entropy=with_entropy
        )
    else:
        hidden = model.base_model(**inputs).last_hidden_state[mask]
        chosen, entropy = chunked_log_probs_and_entropy(
            hidden,
            head.weight,
            targets,
            bias=getattr(head, "bias", None),
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            with_entropy=with_entropy,
        )
    return _scatter(chosen, mask), None if entropy is None else _scatter(entropy, mask)


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
