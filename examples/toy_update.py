"""One FlashREINFORCE update on a laptop: no download, no GPU, a few seconds.

A policy over eight tokens answers six prompts. Its old self sampled the answers, it has moved on since, and now
it learns from them, once: centre the rewards, measure the drift, close the gate on what drifted too far, weigh each token
by its importance ratio, take one step.

    python examples/toy_update.py
"""

from __future__ import annotations

import torch

from flashreinforce_molt import Trajectory, TrajectoryBatch, flashreinforce_loss
from flashreinforce_molt.logprobs import chosen_log_probs_and_entropy

PROMPTS, ANSWER_TOKENS = 6, 6
START, REWARDED = 0, 3  # every prompt is one START token; an answer's reward is its share of REWARDED tokens
torch.manual_seed(7)

# The policy: next-token logits for each token. The behaviour policy is the version that sampled.
policy = torch.nn.Embedding(8, 8)
behavior = policy.weight.detach().clone()

# 1. Collect: one rollout per prompt, each token with the log-prob it was sampled with and the version that sampled it.
trajectories = []
for prompt in range(PROMPTS):
    tokens, log_probs = [START], []
    for _ in range(ANSWER_TOKENS):
        distribution = torch.log_softmax(behavior[tokens[-1]], dim=-1)
        tokens.append(int(torch.multinomial(distribution.exp(), 1)))
        log_probs.append(float(distribution[tokens[-1]]))
    trajectories.append(
        Trajectory(
            trajectory_id=prompt,
            prompt_id=f"prompt {prompt}",
            tokens=tokens,
            action_mask=[False] + [True] * ANSWER_TOKENS,
            behavior_log_probs=log_probs,
            policy_versions=[0] * ANSWER_TOKENS,
            reward=tokens.count(REWARDED) / ANSWER_TOKENS,
            finish_reason="length",
            finished_version=0,
        )
    )

# 2. Batch. Meanwhile the learner has moved: its policy is no longer the one that sampled.
batch = TrajectoryBatch(trajectories)
with torch.no_grad():
    policy.weight += 0.13 * torch.randn_like(policy.weight)

# 3. Correct, trust and optimize: one step, then the batch is gone.
rows = batch.padded()
optimizer = torch.optim.AdamW(policy.parameters(), lr=0.05)
log_probs, _ = chosen_log_probs_and_entropy(policy(rows.input_ids[:, :-1]), rows.targets)
loss, stats = flashreinforce_loss(log_probs, **rows.objective_inputs(), delta=3e-3)
loss.backward()  # one backward pass, one step: never a second epoch over the same batch
gradient_norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm=1.0)
optimizer.step()

ratios = (log_probs.detach() - rows.behavior_log_probs).exp()
lag = batch.policy_lag(learner_version=1)
print(f"{'trajectory':>10} {'reward':>8} {'advantage':>10} {'drift':>9} {'gate':>9}   ratios")
for row, trajectory in enumerate(batch):
    gate = "admitted" if stats["admitted"][row] else "rejected"
    drift, advantage = float(stats["sequence_kl"][row]), float(stats["advantages"][row])
    shown = " ".join(f"{ratio:.2f}" for ratio in ratios[row].tolist())
    print(f"{row:>10} {trajectory.reward:>8.3f} {advantage:>+10.3f} {drift:>9.5f} {gate:>9}   {shown}")
print(f"\nloss            {loss.item():+.5f}")
print(f"gradient norm   {gradient_norm.item():.5f}")
print(f"policy lag      {lag.mean:.0f} version: {lag.in_flight:.0f} in flight, {lag.in_queue:.0f} in queue")
print(f"acceptance      {float(stats['acceptance_rate']):.0%} of {len(batch)} trajectories")
print(
    f"largest ratio   {float(stats['max_ratio']):.3f}, top token holds {float(stats['top_token_share']):.0%} of the weight"
)
