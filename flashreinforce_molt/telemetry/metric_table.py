"""The one table of a run's metrics: their names, units and meaning. `docs/metrics.md` is made from it."""

from __future__ import annotations

from dataclasses import dataclass

ENVIRONMENT_GROUP = "environment"
"""Group of every metric that an environment adds and that is not in the table."""


@dataclass(frozen=True)
class Metric:
    """One column of `metrics.jsonl` or `evaluation.jsonl`."""

    name: str
    unit: str
    meaning: str
    """One sentence: what is measured, over what."""
    reading: str
    """What a high, a low or a changing value says."""
    group: str
    """Heading in TensorBoard, in the report and on the reference page."""


METRICS: tuple[Metric, ...] = (
    Metric(
        "update",
        "count",
        "Number of the optimizer step, from 1.",
        "Every line is one update: no number is missing and none appears twice, also across a resume.",
        "progress",
    ),
    Metric(
        "reward_mean",
        "reward",
        "Mean reward of the batch's trajectories; the baseline that is subtracted in this update (Eq. 5).",
        "Should rise. It is measured on training prompts with an older policy, so trust the evaluation for claims.",
        "reward",
    ),
    Metric(
        "reward_std",
        "reward",
        "Standard deviation of the reward over the batch's trajectories.",
        "Near 0, all trajectories score the same and the update has almost no gradient.",
        "reward",
    ),
    Metric(
        "acceptance_rate",
        "fraction",
        "Share of the batch's trajectories that the trust region admits (Eq. 8).",
        "Usually above 0.99. Falling: the policy moves too fast for its lag; lower the rate or the lag.",
        "trust",
    ),
    Metric(
        "sequence_kl_mean",
        "nats per token",
        "Mean over trajectories of their drift, the mean Bernoulli KL between behaviour policy and learner (Eq. 7).",
        "Compare with `objective.delta`. Tiny: the correction has little to correct. It is a lower bound of the full KL.",
        "trust",
    ),
    Metric(
        "sequence_kl_max",
        "nats per token",
        "Largest drift of one trajectory in the batch, admitted or not.",
        "Above `objective.delta` that trajectory was rejected.",
        "trust",
    ),
    Metric(
        "ratio_max",
        "ratio",
        "Largest importance ratio of one token, over admitted trajectories.",
        "The gate bounds a mean, not a single weight: a large value means that one token dominates.",
        "trust",
    ),
    Metric(
        "top_token_share",
        "fraction",
        "Largest share of one token in the batch's absolute loss weight.",
        "Small in a healthy run, about one over the batch's policy tokens; close to 1, one token is the whole gradient.",
        "trust",
    ),
    Metric(
        "policy_lag_mean",
        "versions",
        "Mean over policy tokens of the learner's version at the update minus the version that sampled the token.",
        "0 is on-policy. The sum of `lag_in_flight` and `lag_in_queue`.",
        "lag",
    ),
    Metric(
        "policy_lag_max",
        "versions",
        "Largest policy lag of one token in the batch.",
        "Never above `rollout.max_policy_lag` where that is set.",
        "lag",
    ),
    Metric(
        "lag_in_flight",
        "versions",
        "Part of the mean policy lag that arose while the trajectory was still being generated.",
        "Grows with response length and with `rollout.in_flight`.",
        "lag",
    ),
    Metric(
        "lag_in_queue",
        "versions",
        "Part of the mean policy lag that arose while the finished trajectory waited for the learner.",
        "Grows when the learner is the bottleneck, up to `rollout.queue_depth`.",
        "lag",
    ),
    Metric(
        "response_tokens_mean",
        "tokens",
        "Mean number of policy tokens in a trajectory (T_i), over all its turns.",
        "A steady climb together with truncation is a sign of length growth without benefit.",
        "response",
    ),
    Metric(
        "truncated_fraction",
        "fraction",
        "Share of trajectories that ended at a token limit instead of by themselves.",
        "High values mean that rewards judge unfinished answers; raise the limit or look at the answers.",
        "response",
    ),
    Metric(
        "entropy_mean",
        "nats",
        "Mean entropy of the learner's next-token distribution over the policy tokens.",
        "Falls as the policy becomes sure. Near 0 early: exploration is over. null: not computed in this run.",
        "response",
    ),
    Metric(
        "grad_norm",
        "norm",
        "Global gradient norm before clipping.",
        "Values above `optim.max_grad_norm` were scaled down to it. Spikes: look at `ratio_max` of the same update.",
        "optimizer",
    ),
    Metric(
        "lr",
        "rate",
        "Learning rate of this update.",
        "Follows `optim.schedule`.",
        "optimizer",
    ),
    Metric(
        "trajectories_total",
        "count",
        "Trajectories trained since the run began, across resumes.",
        "Rises by `train.batch_size` each update: every trajectory is trained once.",
        "trajectories",
    ),
    Metric(
        "dropped_total",
        "count",
        "Trajectories that ended without being trained since the run began, for a counted reason.",
        "Should stay near 0; the run log names the reasons.",
        "trajectories",
    ),
    Metric(
        "rollout_tokens_per_s",
        "tokens/s",
        "Policy tokens that the rollout workers sampled per second since the previous update.",
        "With `learner_idle_s` near 0 the learner is the bottleneck and this number is held back.",
        "throughput",
    ),
    Metric(
        "learner_idle_s",
        "s",
        "Part of `step_s` in which the learner waited for trajectories.",
        "Close to `step_s`: rollouts are the bottleneck. Close to 0: the learner is.",
        "throughput",
    ),
    Metric(
        "step_s",
        "s",
        "Time from the end of the previous update to the end of this one, waiting included, evaluation not.",
        "Its inverse is updates per second.",
        "throughput",
    ),
    Metric(
        "wall_s",
        "s",
        "Time since the run began, evaluation included; a pause between a stop and its resume is not counted.",
        "The axis to use when two runs are compared for speed.",
        "throughput",
    ),
)
"""Every metric that each update must report; the one place where they are named and explained."""

FAULT_METRICS: tuple[Metric, ...] = (
    Metric(
        "worker_restarts",
        "count",
        "Rollout workers that died and were started again since this process began.",
        "Should be 0; the run log says how each of them died.",
        "trajectories",
    ),
    Metric(
        "reissued",
        "count",
        "Trajectories that a dead worker had in flight and that were issued again under their ids.",
        "Nothing is lost with a worker but the time.",
        "trajectories",
    ),
    Metric(
        "retried",
        "count",
        "Episodes that their environment lost and that were played again since this process began.",
        "Stays within `environment.max_retries` for each task; after that the task is dropped.",
        "trajectories",
    ),
    Metric(
        "ratio_alarm",
        "count",
        "1 when every importance ratio of the batch is exactly 1 although older weights sampled it, else 0.",
        "Should stay 0. Otherwise log-probs were recomputed instead of recorded, or the weights do not change.",
        "trust",
    ),
    Metric(
        "nonfinite_updates",
        "count",
        "Batches skipped since the run began because a log-prob, the loss or the gradient was not finite.",
        "Should stay 0. Each lies under `nonfinite/` for `--replay-batch`; `dropped_nonfinite` counts its trajectories.",
        "trajectories",
    ),
)
"""What the local and the Megatron engine report besides; Molt's lines do without."""

EVALUATION_METRICS: tuple[Metric, ...] = (
    Metric(
        "update",
        "count",
        "Updates that the evaluated policy has had; 0 is the policy before the first update.",
        "At 0 it shows what the model, with its warm start if it had one, could do before the method.",
        "evaluation",
    ),
    Metric(
        "sampled_accuracy",
        "fraction",
        "Share of held-out answers, sampled at the evaluation's temperature, that are exactly right.",
        "The headline number; its noise is about sqrt(p(1-p)/(tasks*samples)).",
        "evaluation",
    ),
    Metric(
        "greedy_accuracy",
        "fraction",
        "Share of held-out tasks whose most likely answer is exactly right.",
        "Above the sampled accuracy while the policy is still unsure. null: not measured.",
        "evaluation",
    ),
    Metric(
        "constant_answer_baseline",
        "fraction",
        "Accuracy of the single best constant answer on the same tasks.",
        "An accuracy near it may come from guessing the commonest answer. null: not measured.",
        "evaluation",
    ),
    Metric(
        "tasks",
        "count",
        "Held-out tasks.",
        "Disjoint from the training tasks.",
        "evaluation",
    ),
    Metric(
        "samples",
        "count",
        "Sampled answers for each task.",
        "More samples, less noise.",
        "evaluation",
    ),
    Metric(
        "wall_s",
        "s",
        "Time since the run began, at the end of this evaluation.",
        "Places the evaluation on the clock.",
        "evaluation",
    ),
)
"""What each evaluation must report; further fields are free."""

_GROUP_OF = {metric.name: metric.group for metric in (*METRICS, *FAULT_METRICS)}


def group_of(name: str) -> str:
    """Heading under which a metric is shown; whatever the table does not know belongs to the environment."""
    if name.startswith("dropped_"):
        return "trajectories"
    return _GROUP_OF.get(name, ENVIRONMENT_GROUP)
