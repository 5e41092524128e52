"""A batch through Molt's own objects on one or two CPU ranks: Trajectory -> Experience -> advantages -> update.

Everything is Molt's but two things: the trajectories, which are sampled here, and torch.cuda, which a stand-in
replaces. The gradient that reaches the parameters is caught at the optimizer step.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "integration/real_molt/cpu_shim"))

import torch
from molt_command import molt_command
from molt_on_cpu import stand_in_for_cuda
from torch import distributed
from transformers import Qwen2Config, Qwen2ForCausalLM

from flashreinforce_molt import flashreinforce_loss
from flashreinforce_molt.logprobs import chosen_log_probs_and_entropy
from flashreinforce_molt.molt.cli_block import parse_molt_command
from flashreinforce_molt.molt.registration import register

stand_in_for_cuda()
register()

MAX_LENGTH = 64
TEMPERATURE = 0.8


def tiny_model(seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=False,
    )
    return Qwen2ForCausalLM(config).float()


def molt_args(changes: dict[str, Any] | None = None) -> Any:
    base = {
        "rollout.batch_size": 8,
        "train.batch_size": 8,
        "actor.max_norm": 0.0,
        "rollout.temperature": TEMPERATURE,
        "data.max_len": MAX_LENGTH,
        "fsdp.attn_implementation": "sdpa",
        "actor.gradient_checkpoint": "none",
    }
    return parse_molt_command(molt_command({**base, **(changes or {})})).args


def sample_trajectories(layout: list[list[int]], seed: int = 1, drift: float = 0.05) -> list[list[Any]]:
    """Trajectories of Molt, one list of rows each; `layout` gives the policy tokens of every row.

    Rows have prompts of different lengths and, from 6 tokens on, an observation in the middle. The recorded log-probs
    are those of a policy that is off by noise of scale `drift`, ten times more in every third trajectory.
    """
    from molt.agents.base import Trajectory

    model = tiny_model()
    generator = torch.Generator().manual_seed(seed)
    trajectories = []
    for number, rows in enumerate(layout):
        reward, failed = float(number % 3 == 0), number % 3 != 0
        parts = []
        for tokens in rows:
            prompt = torch.randint(1, 61, (3 + number % 4,), generator=generator).tolist()
            row = Trajectory("p", "l", None, "", list(prompt), rollout_log_probs=[0.0] * len(prompt))
            turns = [tokens] if tokens < 6 else [tokens // 2, tokens - tokens // 2]
            for turn, count in enumerate(turns):
                action = torch.randint(1, 61, (count,), generator=generator).tolist()
                row.append_action(action, [0.0] * count)
                if turn + 1 < len(turns):
                    row.append_feedback("", "", [7, 8, 9])
            parts.append(row)
        for row in parts:
            noise = drift * (10 if number % 3 == 2 else 1)
            _record_log_probs(model, row, noise, generator)
            row.reward = row.scores = reward
            row.extra_logs = {"failed": failed}
            row.group_id, row.rollout_id = f"g{number}", f"t{number}"
        trajectories.append(parts)
    return trajectories


@torch.no_grad()
def _record_log_probs(model: Any, row: Any, noise: float, generator: torch.Generator) -> None:
    tokens = torch.tensor([row.observation_tokens])
    logits = model(tokens).logits[:, :-1]
    exact, _ = chosen_log_probs_and_entropy(logits, tokens[:, 1:], temperature=TEMPERATURE)
    recorded = (exact[0] + noise * torch.randn(exact.shape[1], generator=generator)).clamp(max=-1e-4)
    row.rollout_log_probs = [0.0] * len(row.observation_tokens)
    for start, end in row.action_ranges:
        row.rollout_log_probs[start:end] = recorded[start - 1 : end - 1].tolist()


def experiences_of(trajectories: list[list[Any]]) -> list[Any]:
    """By Molt's own conversion."""
    from molt.trainer.rollout.samples_generator import SamplesGenerator

    made = []
    for row in (row for rows in trajectories for row in rows):
        experience, dropped = SamplesGenerator._process_response_into_experience(row, set(), MAX_LENGTH)
        assert dropped is None, dropped
        made.append(experience)
    return made


def reference_gradient(trajectories: list[list[Any]], **options: Any) -> dict[str, torch.Tensor]:
    """The gradient of `flashreinforce_loss` on the whole batch, computed row by row with transformers alone."""
    model = tiny_model()
    rows = [(number, row) for number, parts in enumerate(trajectories) for row in parts]
    width = max(len(row.observation_tokens) for _, row in rows) - 1
    log_probs, behavior, mask, entropies = [], [], [], []
    for _, row in rows:
        tokens = torch.tensor([row.observation_tokens])
        chosen, entropy = chosen_log_probs_and_entropy(
            model(tokens).logits[:, :-1], tokens[:, 1:], temperature=TEMPERATURE, with_entropy=True
        )
        pad = (0, width - chosen.shape[1])
        policy = torch.zeros(len(row.observation_tokens), dtype=torch.bool)
        for start, end in row.action_ranges:
            policy[start:end] = True
        recorded = torch.tensor(row.rollout_log_probs[1:])
        log_probs.append(torch.nn.functional.pad(chosen[0], pad))
        entropies.append(torch.nn.functional.pad(entropy[0], pad))
        behavior.append(torch.nn.functional.pad(recorded, pad))
        mask.append(torch.nn.functional.pad(policy[1:], pad))
    loss, _ = flashreinforce_loss(
        torch.stack(log_probs),
        torch.stack(behavior),
        torch.tensor([float(row.reward) for _, row in rows]),
        torch.stack(mask),
        trajectory_ids=torch.tensor([number for number, _ in rows]),
        entropies=torch.stack(entropies),
        failures=torch.tensor([row.extra_logs["failed"] for _, row in rows]),
        log_ratio_limit=30.0,
        **options,
    )
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def update_gradient(
    trajectories: list[list[Any]], args: Any, rank: int = 0, ranks: int = 1
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The gradient at the optimizer step of Molt's `PolicyTrainer`, and the status that it returns."""
    import molt.trainer.rl_trainer as controller
    import molt.trainer.workers.policy_actor as learner
    from molt.models import Actor
    from molt.trainer.algorithm.kl_controller import FixedKLController
    from molt.utils import get_strategy

    strategy = get_strategy(args)
    if not distributed.is_initialized():
        join_group(rank, ranks, free_port())
    strategy.world_size = strategy.dp_size = strategy.dp_cp_size = ranks
    maker = controller.RemoteExperienceMaker(None, None, FixedKLController(0.0), strategy, None)
    experiences = maker.build_experiences(controller.balance_experiences(experiences_of(trajectories), args))

    model = tiny_model()
    if ranks > 1:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=distributed.device_mesh.init_device_mesh("cpu", (ranks,)))
    actor = Actor(model, temperature=TEMPERATURE)
    optimizer = SimpleNamespace(step=lambda: None, zero_grad=lambda **_: None)
    scheduler = SimpleNamespace(step=lambda: None, get_last_lr=lambda: [0.0])
    trainer = learner.PolicyTrainer(
        strategy,
        actor,
        optimizer,
        scheduler,
        micro_train_batch_size=args.train.micro_batch_size,
        dataloader_pin_memory=False,
    )
    share = len(experiences) // ranks
    for experience in experiences[rank * share : (rank + 1) * share]:
        trainer.replay_buffer.append(experience)
    caught: dict[str, torch.Tensor] = {}
    strategy._max_norm_by_optimizer[id(optimizer)] = 0.0

    def catch() -> None:
        assert not caught, "a second optimizer step"
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            caught[name] = (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).clone()

    optimizer.step = catch
    status = trainer.policy_train(0.0)
    return caught, status


def join_group(rank: int, ranks: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )
    distributed.init_process_group("gloo")


def update_gradient_on_two_ranks(
    layout: list[list[int]], changes: dict[str, Any]
) -> tuple[list[dict[str, torch.Tensor]], list[dict[str, Any]]]:
    """`update_gradient` in two forked processes under FSDP2: gradients and statuses of both."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _rank, (layout, changes, free_port(), folder), nprocs=2, start_method="fork"
        )
        results = [torch.load(f"{folder}/{rank}.pt", weights_only=False) for rank in range(2)]
    return [gradient for gradient, _ in results], [status for _, status in results]


def _rank(rank: int, layout: list[list[int]], changes: dict[str, Any], port: int, folder: str) -> None:
    join_group(rank, 2, port)
    args = molt_args({**changes, "actor.num_gpus_per_node": 2})
    torch.save(update_gradient(sample_trajectories(layout), args, rank, 2), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
