"""Log-probs and entropies from a sharded vocabulary equal those of the gathered logits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flashreinforce_molt.learners.megatron import vocab_parallel_log_probs_and_entropy
from flashreinforce_molt.logprobs import chosen_log_probs_and_entropy

VOCABULARY = 24


def problem(dtype=torch.float64, shape=(5, 3), columns=VOCABULARY):
    draw = torch.Generator().manual_seed(0)
    logits = (torch.randn(*shape, columns, generator=draw, dtype=torch.float64) * 3).to(dtype)
    return logits, torch.randint(0, VOCABULARY, shape, generator=draw), torch.randn(shape, generator=draw)


def gathered(logits, targets, upstream, **options):
    """Values and gradient from the whole logits in the definition's own words."""
    leaf = logits.clone().requires_grad_()
    log_probs, entropy = chosen_log_probs_and_entropy(leaf, targets, with_entropy=True, **options)
    (gradient,) = torch.autograd.grad((log_probs * upstream).sum(), leaf)
    return log_probs.detach(), entropy, gradient


def sharded(logits, targets, upstream, **options):
    """The same on this rank's columns, whose gradient is returned."""
    group = dist.group.WORLD
    leaf = logits.chunk(group.size(), -1)[group.rank()].clone().requires_grad_()
    before = leaf.detach().clone()
    log_probs, entropy = vocab_parallel_log_probs_and_entropy(leaf, targets, group, **options)
    loss = (log_probs * upstream).sum()
    (first,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    (second,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(first, second), "a second backward differs"
    assert torch.equal(leaf.detach(), before), "the logits were overwritten"
    assert not entropy.requires_grad
    return log_probs.detach(), entropy, first


def assert_ranks_equal(outcomes, expected, **close):
    log_probs, entropy, gradient = expected
    for rank, outcome in enumerate(outcomes):
        torch.testing.assert_close(outcome[0], log_probs, **close)
        torch.testing.assert_close(outcome[1], entropy, **close)
        torch.testing.assert_close(outcome[2], gradient.chunk(len(outcomes), -1)[rank], **close)
        assert torch.equal(outcome[0], outcomes[0][0]), "ranks disagree in a bit"


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(
    ("dtype", "close"),
    [
        (torch.float64, {"rtol": 1e-12, "atol": 1e-12}),
        (torch.float32, {"rtol": 1e-6, "atol": 2e-6}),
        (torch.bfloat16, {"rtol": 1e-2, "atol": 1e-6}),  # the gradient is rounded to bfloat16
    ],
    ids=str,
)
def test_every_shard_equals_the_gathered_vocabulary(tp, dtype, close):
    logits, targets, upstream = problem(dtype)
    outcomes = run_ranks(tp, sharded, logits, targets, upstream)
    assert outcomes[0][0].dtype == torch.promote_types(dtype, torch.float32)
    assert_ranks_equal(outcomes, gathered(logits, targets, upstream), **close)


def every_chunk_size(logits, targets, upstream):
    return [
        sharded(logits, targets, upstream, chunk_tokens=size, temperature=0.7)
        for size in (1, 4, 7, 14, 15, 100)
    ]


def test_chunks_of_any_size_give_the_same():
    logits, targets, upstream = problem()
    expected = gathered(logits, targets, upstream, temperature=0.7)
    for outcomes in zip(*run_ranks(2, every_chunk_size, logits, targets, upstream), strict=True):
        assert_ranks_equal(outcomes, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("vocab_size", [5, 6, 7, 12, 13, 18, 24])
def test_padding_of_the_vocabulary_has_no_probability_and_no_gradient(vocab_size):
    """Four shards of 6 columns: the padding begins inside a shard, at an edge, or swallows whole shards."""
    logits, targets, upstream = problem()
    logits[..., vocab_size:] = 1e4
    targets %= vocab_size
    log_probs, entropy, gradient = gathered(logits[..., :vocab_size], targets, upstream)
    padded = torch.nn.functional.pad(gradient, (0, VOCABULARY - vocab_size))
    outcomes = run_ranks(4, padded_case, logits, targets, upstream, vocab_size)
    assert_ranks_equal(outcomes, (log_probs, entropy, padded), rtol=1e-12, atol=1e-12)


def padded_case(logits, targets, upstream, vocab_size):
    return sharded(logits, targets, upstream, vocab_size=vocab_size)


def test_targets_at_the_edges_of_every_shard():
    logits, _, _ = problem(shape=(8,))
    targets = torch.tensor([0, 5, 6, 11, 12, 17, 18, 23])
    upstream = torch.ones(8)
    assert_ranks_equal(
        run_ranks(4, sharded, logits, targets, upstream),
        gathered(logits, targets, upstream),
        rtol=1e-12,
        atol=1e-12,
    )


def test_a_shard_of_forbidden_tokens_adds_nothing():
    logits, targets, upstream = problem()
    logits[..., 12:] = -math.inf
    targets %= 12
    outcomes = run_ranks(2, sharded, logits, targets, upstream)
    assert_ranks_equal(outcomes, gathered(logits, targets, upstream), rtol=1e-12, atol=1e-12)


def test_a_target_outside_the_vocabulary_has_no_log_prob_and_disturbs_no_other():
    logits, targets, upstream = problem()
    odd = targets.clone()
    odd[0, 0], odd[1, 1] = -100, VOCABULARY
    upstream[0, 0] = upstream[1, 1] = 0
    log_probs, entropy = vocab_parallel_log_probs_and_entropy(logits, odd, None)
    assert log_probs.isnan().nonzero().tolist() == [[0, 0], [1, 1]]
    expected, expected_entropy, gradient = gathered(logits, targets, upstream)
    torch.testing.assert_close(log_probs[2:], expected[2:])
    torch.testing.assert_close(entropy, expected_entropy)
    outcomes = run_ranks(2, masked_gradient, logits, odd, upstream)
    torch.testing.assert_close(torch.cat(outcomes, -1), gradient)


def masked_gradient(logits, targets, upstream):
    group = dist.group.WORLD
    leaf = logits.chunk(2, -1)[group.rank()].clone().requires_grad_()
    log_probs, _ = vocab_parallel_log_probs_and_entropy(leaf, targets, group)
    torch.where(upstream != 0, log_probs * upstream, 0).sum().backward()
    return leaf.grad


def test_the_entropy_carries_gradient_when_asked():
    logits, targets, upstream = problem()
    leaf = logits.clone().requires_grad_()
    log_p = (leaf / 0.7).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    chosen = log_p.gather(-1, targets[..., None])[..., 0]
    ((chosen + 2 * entropy) * upstream).sum().backward()
    outcomes = run_ranks(2, with_entropy_gradient, logits, targets, upstream)
    torch.testing.assert_close(torch.cat(outcomes, -1), leaf.grad, rtol=1e-12, atol=1e-12)


def with_entropy_gradient(logits, targets, upstream):
    group = dist.group.WORLD
    leaf = logits.chunk(2, -1)[group.rank()].clone().requires_grad_()
    log_probs, entropy = vocab_parallel_log_probs_and_entropy(
        leaf, targets, group, temperature=0.7, chunk_tokens=4, entropy_gradient=True
    )
    ((log_probs + 2 * entropy) * upstream).sum().backward()
    return leaf.grad


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_a_log_prob_is_never_positive_and_an_entropy_never_negative(scale):
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(1)) * scale
    log_probs, entropy = vocab_parallel_log_probs_and_entropy(logits, logits.argmax(-1), None)
    assert (log_probs <= 0).all()
    assert (entropy >= 0).all()


def test_a_gradient_of_a_gradient_is_refused_rather_than_wrong():
    logits, targets, upstream = problem()
    leaf = logits.requires_grad_()
    log_probs, _ = vocab_parallel_log_probs_and_entropy(leaf, targets, None)
    (gradient,) = torch.autograd.grad((log_probs * upstream).sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


def test_no_tokens_give_no_log_probs():
    log_probs, entropy = vocab_parallel_log_probs_and_entropy(
        torch.empty(0, 3, 8, requires_grad=True), torch.empty(0, 3, dtype=torch.long), None
    )
    assert log_probs.shape == entropy.shape == (0, 3)


class _LargestNew(TorchDispatchMode):
    """Elements of the largest tensor that an operation made (not a view or an in-place result)."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        old = {
            leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)
        }
        result = function(*args, **kwargs or {})
        self.sizes += [
            leaf.numel()
            for leaf in tree_leaves(result)
            if torch.is_tensor(leaf) and leaf.untyped_storage().data_ptr() not in old
        ]
        return result


def test_memory_beside_logits_and_gradient_is_a_chunk():
    tokens, vocabulary, chunk = 64, 500, 8
    logits = torch.randn(tokens, vocabulary, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, vocabulary, (tokens,))
    with _LargestNew() as made:
        log_probs, _ = vocab_parallel_log_probs_and_entropy(logits, targets, None, chunk_tokens=chunk)
        torch.autograd.grad(log_probs.sum(), logits)
    large = [size for size in made.sizes if size > chunk * vocabulary]
    assert large == [tokens * vocabulary], "only the gradient may be as large as the logits"


def test_no_copy_of_the_probabilities_is_kept_for_backward():
    logits, targets, _ = problem()
    leaf = logits.requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
    ):
        vocab_parallel_log_probs_and_entropy(leaf, targets, None)
    large = [tensor for tensor in kept if tensor.numel() >= leaf.numel()]
    assert len(large) == 1
    assert large[0].data_ptr() == leaf.data_ptr()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"temperature": 0.0}, "temperature=0.0 must be positive"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"chunk_tokens": 0}, "chunk_tokens=0"),
        ({"vocab_size": 25}, "vocab_size=25: 1 tensor-parallel rank"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"entropy_gradient": True, "with_entropy": False}, "needs with_entropy=True"),
    ],
)
def test_meaningless_arguments_are_refused_by_name(options, match):
    logits, targets, _ = problem()
    with pytest.raises(ValueError, match=match):
        vocab_parallel_log_probs_and_entropy(logits, targets, None, **options)


def test_targets_of_another_shape_are_refused():
    logits, targets, _ = problem()
    with pytest.raises(ValueError, match=r"targets have shape \[4, 3\], expected \[5, 3\]"):
        vocab_parallel_log_probs_and_entropy(logits, targets[1:], None)
