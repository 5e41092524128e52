"""Log-probs and entropies over a sharded vocabulary: this project's function against Megatron-Core's own pieces.

    python benchmarks/vocab_parallel.py [--tp 2] [--tokens 1024] [--vocab 151936] [--repeats 5]

Both sides see the same logits in the same processes, alternately: forward with entropy, then backward. The peer is
megatron-core's `vocab_parallel_cross_entropy` after a separate entropy pass (it has no entropy function; the pass here
needs two reductions over the vocabulary). Times are medians; memory is the growth of the peak resident size over
what the logits and their gradient take. Needs megatron-core; runs on CPUs with gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron.core import parallel_state, tensor_parallel
from torch import Tensor

from flashreinforce_molt.learners.megatron import vocab_parallel_log_probs_and_entropy


def ours(logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    log_probs, entropy = vocab_parallel_log_probs_and_entropy(logits, targets, group)
    assert entropy is not None
    return log_probs, entropy


def megatron(logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    with torch.no_grad():  # first: with float32 logits the cross entropy overwrites them
        values = logits.float()
        maximum = values.amax(-1)
        dist.all_reduce(maximum, dist.ReduceOp.MAX, group=group)
        weights = (values - maximum[..., None]).exp_()
        sums = torch.stack([weights.sum(-1), (weights * (values - maximum[..., None])).sum(-1)])
        dist.all_reduce(sums, group=group)
        entropy = sums[0].log() - sums[1] / sums[0]
        del values, weights
    return -tensor_parallel.vocab_parallel_cross_entropy(logits, targets), entropy


def measure(
    step: Callable, source: Tensor, targets: Tensor, group: dist.ProcessGroup
) -> tuple[float, float, tuple]:
    """Seconds, MiB above the logits and their gradient, and the outcome with the gradient."""
    leaf = source.clone().requires_grad_()
    logits = leaf * 1  # as from an output layer: not a leaf, so the peer may overwrite it
    reset_peak()
    before = resident("VmRSS")
    dist.barrier(group)
    started = time.perf_counter()
    log_probs, entropy = step(logits, targets, group)
    (gradient,) = torch.autograd.grad(log_probs.sum(), logits)
    seconds = time.perf_counter() - started
    extra = resident("VmHWM") - before - source.numel() * source.element_size() / 2**20
    return seconds, extra, (log_probs.detach(), entropy, gradient)


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def resident(field: str) -> float:
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(field)).split()[1]) / 1024


def work(rank: int, arguments: argparse.Namespace, rendezvous: str, output: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=arguments.tp)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=arguments.tp)
    group = parallel_state.get_tensor_model_parallel_group()
    draw = torch.Generator().manual_seed(rank)
    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        source = (torch.randn(arguments.tokens, arguments.vocab // arguments.tp, generator=draw) * 3).to(
            dtype
        )
        targets = torch.randint(
            0, arguments.vocab, (arguments.tokens,), generator=torch.Generator().manual_seed(9)
        )
        runs: dict[str, list] = {"ours": [], "megatron": []}
        for _ in range(arguments.repeats + 1):
            outcomes = {}
            for name, step in (("ours", ours), ("megatron", megatron)):
                *figures, outcomes[name] = measure(step, source, targets, group)
                runs[name].append(figures)
            worst = [
                (a.float() - b.float()).abs().max().item()
                for a, b in zip(outcomes["ours"], outcomes["megatron"], strict=True)
            ]
            del outcomes
        figures = {
            name: {
                "ms": round(1000 * statistics.median(seconds for seconds, _ in kept[1:]), 1),
                "extra MiB": round(max(extra for _, extra in kept[1:]), 1),
            }
            for name, kept in runs.items()
        }
        results[str(dtype)] = figures | {
            "difference (log-prob, entropy, gradient)": [f"{w:.1e}" for w in worst]
        }
    if rank == 0:
        with open(output, "w") as file:
            json.dump(results, file)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        output = os.path.join(directory, "result.json")
        mp.start_processes(
            work,
            (arguments, os.path.join(directory, "rendezvous"), output),
            arguments.tp,
            start_method="fork",
        )
        with open(output) as file:
            results = json.load(file)
    print(
        f"{arguments.tokens} tokens, vocabulary {arguments.vocab}, TP{arguments.tp}, one thread per rank, gloo"
    )
    for dtype, figures in results.items():
        print(dtype)
        for name, values in figures.items():
            print(f"  {name:12} {values}")


if __name__ == "__main__":
    main()
