"""Log-prob and entropy of chosen tokens, from logits or, in bounded memory, from hidden states."""

from flashreinforce_molt.logprobs.chunked import chunked_log_probs_and_entropy
from flashreinforce_molt.logprobs.dense import chosen_log_probs_and_entropy

__all__ = ["chosen_log_probs_and_entropy", "chunked_log_probs_and_entropy"]
