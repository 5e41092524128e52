"""The learner: one AdamW step on the whole batch, whatever the microbatches and the precision."""

import copy

import numpy as np
import pytest
import torch
from tiny_engine import tiny_policy
from transformers import Gemma2Config, Gemma2ForCausalLM

from flashreinforce_molt.config import Config, ObjectiveConfig, OptimConfig
from flashreinforce_molt.learners.scoring import score
from flashreinforce_molt.learners.torch_learner import NonFiniteUpdateError, TorchLearner
from flashreinforce_molt.objective import flashreinforce_loss
from flashreinforce_molt.trajectory import Trajectory, TrajectoryBatch


def batch_of(count: int = 6, seed: int = 0) -> TrajectoryBatch:
    """Trajectories of unequal length, one of them in two rows."""
    rng = np.random.default_rng(seed)
    trajectories = []
    for i in range(count):
        lengths = (5 + i,) if i != 2 else (6, 9)
        mask = np.concatenate([np.arange(length) >= 3 for length in lengths])
        policy = int(mask.sum())
        trajectories.append(
            Trajectory(
                trajectory_id=i,
                prompt_id=f"p{i}",
                tokens=rng.integers(4, 40, mask.size),
                action_mask=mask,
                behavior_log_probs=-rng.uniform(1.0, 5.0, policy),
                policy_versions=np.zeros(policy, dtype=int),
                reward=float(i % 2),
                failed=i % 2 == 0,
                finish_reason="stop",
                finished_version=0,
                row_lengths=lengths if len(lengths) > 1 else None,
            )
        )
    return TrajectoryBatch(trajectories)


def config_of(**changes: object) -> Config:
    config = Config(objective=ObjectiveConfig(delta=1.0), optim=OptimConfig(lr=1e-2, warmup_fraction=0.0))
    for name, value in changes.items():
        section, _, key = name.partition("__")
        setattr(getattr(config, section), key, value)
    return config


def full_log_probs(model: torch.nn.Module, batch: TrajectoryBatch, temperature: float = 1.0) -> torch.Tensor:
    rows = batch.padded()
    logits = model(input_ids=rows.input_ids, attention_mask=rows.attention_mask).logits[:, :-1].float()
    return torch.log_softmax(logits / temperature, -1).gather(-1, rows.targets[..., None])[..., 0]


@pytest.mark.parametrize("q", [1.0, 0.5])
def test_an_update_is_one_adamw_step_on_the_gradient_of_the_objective(q: float) -> None:
    policy, batch = tiny_policy(), batch_of()
    reference = copy.deepcopy(policy.model).train()
    rows = batch.padded()
    logits = reference(input_ids=rows.input_ids, attention_mask=rows.attention_mask).logits[:, :-1]
    everything = torch.log_softmax(logits, -1)
    entropies = -(everything.exp() * everything).sum(-1)
    log_probs = everything.gather(-1, rows.targets[..., None])[..., 0]
    loss, stats = flashreinforce_loss(
        log_probs,
        **rows.objective_inputs(),
        delta=1.0,
        negative_token_fraction=q,
        entropies=entropies.detach(),
    )
    loss.backward()
    matrices = [p for p in reference.parameters() if p.ndim >= 2]
    vectors = [p for p in reference.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
        eps=1e-3,  # key biases have no gradient but rounding; a small eps would blow that up to a full step
    )
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    optimizer.step()

    result = TorchLearner(
        policy.model, config_of(objective__negative_token_fraction=q, optim__eps=1e-3)
    ).update(batch)
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    assert result.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    assert int(result.stats["retained_tokens"]) == int(stats["retained_tokens"])
    for mine, theirs in zip(policy.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_microbatches_and_chunks_leave_gradient_and_statistics_alone(
    micro_batch_size: int, chunk: int
) -> None:
    def gradient_and_stats(**changes: object) -> tuple[torch.Tensor, dict]:
        learner = TorchLearner(tiny_policy().model, config_of(**changes))
        kept: list[torch.Tensor] = []
        learner.optimizer.step = lambda: kept.extend(m.grad.flatten() for m in learner.masters)  # type: ignore
        return torch.cat((result := learner.update(batch_of()), kept)[1]), result.stats

    wanted, wanted_stats = gradient_and_stats()
    found, found_stats = gradient_and_stats(
        train__micro_batch_size=micro_batch_size, train__logprob_chunk_tokens=chunk
    )
    torch.testing.assert_close(found, wanted, atol=1e-7, rtol=1e-4)
    for name in ("acceptance_rate", "max_ratio", "top_token_share", "policy_tokens", "retained_tokens"):
        assert float(found_stats[name]) == pytest.approx(float(wanted_stats[name]), rel=1e-5)


def test_a_gradient_that_is_not_finite_takes_no_step() -> None:
    policy = tiny_policy()
    learner = TorchLearner(policy.model, config_of())
    learner.update(batch_of(seed=1))
    before = copy.deepcopy(policy.model.state_dict())
    moments = copy.deepcopy(learner.optimizer.state_dict()["state"])
    handle = policy.model.model.norm.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(NonFiniteUpdateError, match=r"update 2: loss .* no step was taken"):
        learner.update(batch_of(seed=2))
    handle.remove()
    assert learner.updates_done == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())
    for index, state in learner.optimizer.state_dict()["state"].items():
        assert all(torch.equal(state[name], moments[index][name]) for name in state)
    assert all(p.grad is None for p in policy.model.parameters())


def test_an_infinite_gradient_is_named_by_its_parameter() -> None:
    policy = tiny_policy()
    learner = TorchLearner(policy.model, config_of())
    policy.model.model.norm.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(NonFiniteUpdateError, match=r"the gradient of model\.norm\.weight holds -?inf|nan"):
        learner.update(batch_of())


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_logits_that_are_not_finite_are_named_by_row_and_token_and_leave_no_gradient(
    micro_batch_size: int | None,
) -> None:
    policy = tiny_policy(tie_word_embeddings=False)  # so that NaN stays with the trajectory that reads it
    learner = TorchLearner(policy.model, config_of(train__micro_batch_size=micro_batch_size))
    batch = batch_of()
    only = batch.trajectories[0]  # the shortest: the last microbatch, after others have left gradients
    token = 40
    with torch.no_grad():
        policy.model.model.embed_tokens.weight[token] = float("nan")
    tokens = only.tokens.copy()
    tokens[1] = token
    object.__setattr__(only, "tokens", tokens)
    place = "row 0" if micro_batch_size is None else "row 1"
    with pytest.raises(
        NonFiniteUpdateError, match=rf"log_probs\[{place}, token \d, trajectory 0\] is nan"
    ) as told:
        learner.update(batch)
    assert "update 1: loss not computed, gradient norm not computed" in str(told.value)
    assert all(p.grad is None for p in policy.model.parameters())
    assert learner.updates_done == 0


def test_an_overflow_of_the_objective_is_an_update_that_is_not_finite() -> None:
    learner = TorchLearner(
        tiny_policy().model, config_of(objective__log_ratio_limit=None, objective__gate="none")
    )
    batch = batch_of()
    wrong = batch.trajectories[1].behavior_log_probs.copy()
    wrong[1] = -200.0
    object.__setattr__(batch.trajectories[1], "behavior_log_probs", wrong)
    with pytest.raises(
        NonFiniteUpdateError, match=r"loss overflows.*log_probs\[row 1, token \d, trajectory 1\]"
    ):
        learner.update(batch)
    assert learner.updates_done == 0


def test_bfloat16_keeps_steps_that_are_smaller_than_its_resolution() -> None:
    policy = tiny_policy()
    policy.model.to(torch.bfloat16)
    learner = TorchLearner(policy.model, config_of(optim__lr=1e-6, optim__weight_decay=0.0))
    start = [master.clone() for master in learner.masters]
    for seed in range(3):
        learner.update(batch_of(seed=seed))
    moved = max((m - s).abs().max().item() for m, s in zip(learner.masters, start, strict=True))
    assert 1e-6 < moved < 1e-5  # far below the bfloat16 spacing of 2^-9 near 1
    for parameter, master in zip(learner.parameters, learner.masters, strict=True):
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, master.to(torch.bfloat16))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_the_log_softmax_at_the_sampling_temperature(temperature: float) -> None:
    model, batch = tiny_policy().model, batch_of()
    rows = batch.padded()
    found, entropies = score(model, rows, temperature=temperature, chunk_tokens=5, with_entropy=True)
    wanted = full_log_probs(model, batch, temperature)
    torch.testing.assert_close(found[rows.action_mask], wanted[rows.action_mask], atol=1e-5, rtol=0)
    assert entropies is not None
    assert (found[~rows.action_mask] == 0).all()
    assert (entropies[~rows.action_mask] == 0).all()
    assert (entropies[rows.action_mask] > 0).all()


def test_models_that_transform_their_logits_are_scored_with_the_transformation() -> None:
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=41,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=64,
            final_logit_softcapping=0.5,
            initializer_range=0.5,
        )
    ).eval()
    batch = batch_of()
    rows = batch.padded()
    found, _ = score(model, rows, temperature=1.0, chunk_tokens=4, with_entropy=False)
    wanted = full_log_probs(model, batch)
    torch.testing.assert_close(found[rows.action_mask], wanted[rows.action_mask], atol=1e-5, rtol=0)
