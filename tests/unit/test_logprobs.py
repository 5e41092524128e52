"""Log-probs and entropies of chosen tokens, from logits and from hidden states in bounded memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashreinforce_molt.logprobs import chosen_log_probs_and_entropy, chunked_log_probs_and_entropy

TOKENS, HIDDEN, VOCABULARY = 13, 6, 29


def problem(dtype=torch.float64, *, bias=True):
    draw = torch.Generator().manual_seed(0)

    def leaf(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()

    targets = torch.randint(0, VOCABULARY, (TOKENS,), generator=draw)
    return leaf(TOKENS, HIDDEN), leaf(VOCABULARY, HIDDEN), leaf(VOCABULARY) if bias else None, targets


def plain(hidden, weight, bias, targets, temperature):
    """log_softmax in the definition's own words."""
    logits = F.linear(hidden, weight, bias).to(torch.promote_types(hidden.dtype, torch.float32)) / temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs[torch.arange(TOKENS), targets], entropy.detach()


def gradients(log_probs, leaves):
    upstream = torch.linspace(-1, 2, TOKENS, dtype=log_probs.dtype)
    return torch.autograd.grad(log_probs, [leaf for leaf in leaves if leaf is not None], upstream)


TOLERANCE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


@pytest.mark.parametrize("chunk_tokens", range(1, TOKENS + 2))
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_chunks_of_any_size_equal_log_softmax_in_values_and_gradients(dtype, chunk_tokens):
    hidden, weight, bias, targets = problem(dtype)
    expected, expected_entropy = plain(hidden, weight, bias, targets, 0.7)
    log_probs, entropy = chunked_log_probs_and_entropy(
        hidden, weight, targets, bias=bias, temperature=0.7, chunk_tokens=chunk_tokens, with_entropy=True
    )
    assert log_probs.dtype == entropy.dtype == torch.promote_types(dtype, torch.float32)
    assert not entropy.requires_grad
    close = TOLERANCE[torch.float32] if dtype == torch.bfloat16 else TOLERANCE[dtype]
    torch.testing.assert_close(log_probs, expected, **close)
    torch.testing.assert_close(entropy, expected_entropy, **close)
    leaves = (hidden, weight, bias)
    torch.testing.assert_close(gradients(log_probs, leaves), gradients(expected, leaves), **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_dense_equals_log_softmax_in_values_and_gradients(dtype, temperature):
    hidden, weight, _, targets = problem(dtype, bias=False)
    expected, expected_entropy = plain(hidden, weight, None, targets, temperature)
    log_probs, entropy = chosen_log_probs_and_entropy(
        hidden @ weight.T, targets, temperature=temperature, with_entropy=True
    )
    torch.testing.assert_close(log_probs, expected, **TOLERANCE[torch.float32])
    torch.testing.assert_close(entropy, expected_entropy, **TOLERANCE[torch.float32])
    leaves = (hidden, weight)
    torch.testing.assert_close(gradients(log_probs, leaves), gradients(expected, leaves), **TOLERANCE[dtype])


def test_known_distribution():
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.25] * 4]).log().unsqueeze(0)
    log_probs, entropy = chosen_log_probs_and_entropy(logits, torch.tensor([[1, 3]]), with_entropy=True)
    assert log_probs.tolist() == [pytest.approx([math.log(0.25)] * 2)]
    assert entropy.tolist() == [pytest.approx([1.75 * math.log(2), 2 * math.log(2)])]


def test_a_forbidden_token_adds_nothing_to_the_entropy():
    logits = torch.tensor([0.0, 0.0, -math.inf], requires_grad=True)
    log_probs, entropy = chosen_log_probs_and_entropy(logits, torch.tensor(0), with_entropy=True)
    assert entropy.item() == pytest.approx(math.log(2))
    (gradient,) = torch.autograd.grad(log_probs, logits)
    assert gradient.tolist() == pytest.approx([0.5, -0.5, 0])


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_a_log_prob_is_never_positive(scale):
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(1)) * scale
    log_probs, _ = chosen_log_probs_and_entropy(logits, logits.argmax(-1))
    assert (log_probs <= 0).all()


def test_entropy_is_only_computed_when_asked_for():
    hidden, weight, _, targets = problem()
    assert chosen_log_probs_and_entropy(hidden @ weight.T, targets)[1] is None
    assert chunked_log_probs_and_entropy(hidden, weight, targets)[1] is None


def test_no_tokens_give_no_log_probs():
    hidden, weight, _, targets = problem()
    log_probs, entropy = chunked_log_probs_and_entropy(hidden[:0], weight, targets[:0], with_entropy=True)
    assert log_probs.shape == entropy.shape == (0,)


def test_many_chunks_do_not_round_the_weight_gradient_away():
    tokens = 2048
    hidden = torch.ones(tokens, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    log_probs, _ = chunked_log_probs_and_entropy(
        hidden, weight, torch.zeros(tokens, dtype=torch.long), chunk_tokens=1
    )
    (gradient,) = torch.autograd.grad(log_probs.sum(), weight)
    assert gradient.tolist() == [[tokens / 2], [-tokens / 2]]


class _LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **kwargs or {})
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return result


def test_neither_pass_ever_holds_more_than_a_chunk_of_logits():
    tokens, hidden_size, vocabulary, chunk = 64, 4, 500, 8
    hidden = torch.randn(tokens, hidden_size, requires_grad=True)
    weight = torch.randn(vocabulary, hidden_size, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))

    with _LargestTensor() as bounded:
        chunked_log_probs_and_entropy(hidden, weight, targets, chunk_tokens=chunk, with_entropy=True)[
            0
        ].sum().backward()
    with _LargestTensor() as unbounded:
        chosen_log_probs_and_entropy(F.linear(hidden, weight), targets)[0].sum().backward()

    assert bounded.numel == chunk * vocabulary
    assert unbounded.numel == tokens * vocabulary


def test_between_the_passes_no_logits_are_kept():
    saved: list[torch.Size] = []
    hidden, weight, bias, targets = problem()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: saved.append(tensor.shape) or tensor, lambda kept: kept
    ):
        chunked_log_probs_and_entropy(hidden, weight, targets, bias=bias, chunk_tokens=4)
    assert all(VOCABULARY not in shape[1:] for shape in saved)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda h, w, t: chosen_log_probs_and_entropy(h @ w.T, t, temperature=0),
            "temperature=0 must be positive",
        ),
        (lambda h, w, t: chosen_log_probs_and_entropy(h @ w.T, t, temperature=math.nan), "temperature=nan"),
        (
            lambda h, w, t: chosen_log_probs_and_entropy(h @ w.T, t[1:]),
            r"targets have shape \[12\], expected \[13\]",
        ),
        (lambda h, w, t: chunked_log_probs_and_entropy(h, w, t, chunk_tokens=0), "chunk_tokens=0"),
        (lambda h, w, t: chunked_log_probs_and_entropy(h, w, t, temperature=-1), "temperature=-1"),
        (lambda h, w, t: chunked_log_probs_and_entropy(h[None], w, t[None]), r"must be \[N, H\] and \[N\]"),
    ],
)
def test_meaningless_arguments_are_refused_by_name(call, match):
    hidden, weight, _, targets = problem()
    with pytest.raises(ValueError, match=match):
        call(hidden, weight, targets)
