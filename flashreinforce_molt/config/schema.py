"""Every setting of a run. The line under a field is its documentation; `docs/settings.md` is made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flashreinforce_molt.config.field import setting


@dataclass
class ModelConfig:
    """The policy: a Hugging Face causal language model."""

    id: str | None = None
    """Hugging Face model id or a local directory; leave empty to build `model.config` from scratch."""
    revision: str | None = None
    """Commit of the model repository that is used; ignored for a local directory."""
    config: dict[str, Any] = field(default_factory=dict)
    """Hugging Face configuration (with `model_type`) of a small model initialised here, with a character tokenizer."""
    alphabet: str = "abcdefghijklmnopqrstuvwxyz0123456789+-*=>.,:?() "
    """Characters that the tokenizer built for `model.config` knows."""
    dtype: str = setting("float32", choices=("float32", "bfloat16"))
    """Precision of the weights in the learner and in the rollout workers."""
    attention: str = setting("sdpa", choices=("sdpa", "eager", "flash_attention_2"))
    """Attention implementation asked of transformers for the learner."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, to save memory."""
    trust_remote_code: bool = False
    """Run Python code that the model repository ships; off unless asked for."""
    allow_longer_context: bool = False
    """Accept a context beyond the model's `max_position_embeddings`, where it was never trained."""


@dataclass
class EnvironmentConfig:
    """What the agent acts in."""

    name: str = "reasoning_gym"
    """Registered environment, see `flashreinforce_molt.environments`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of that environment, checked by it before any model loads."""
    max_turns: int = setting(1, minimum=1)
    """Model turns in one trajectory before it is ended with the reason `turn_limit`."""
    step_timeout_s: float = setting(30.0, above=0)
    """Seconds that one environment step may take before the trajectory is dropped as `environment_timeout`."""
    max_retries: int = setting(0, minimum=0)
    """Times that a task whose episode was lost to its environment is played again before it is dropped."""


@dataclass
class DataConfig:
    """The training tasks, where they are files; environments that make their own tasks leave it empty."""

    id: str | None = None
    """Hugging Face data set, or the name of a published collection, that `data.prepare` starts from."""
    revision: str | None = None
    """Commit of that data set; empty: the one in `recipes/locks/`, else the review says UNPINNED."""
    prepare: str | None = None
    """Name for `flashreinforce-molt prepare` that writes the files of this recipe."""
    path: str | None = None
    """Prepared training file or folder, relative to where the run starts."""
    rows: int | None = setting(None, minimum=1)
    """Training tasks that the prepared data must hold."""
    passes: int = setting(1, minimum=1)
    """Passes over the training tasks; Molt counts these and not updates."""
    max_rows: int | None = setting(None, minimum=1)
    """Use only the first so many training tasks; empty: all."""
    prompt_key: str = "prompt"
    """Column that holds the chat messages."""
    label_key: str | None = "reward_model"
    """Column that the environment grades with."""
    tools_key: str | None = None
    """Column with the tool schemas that the chat template shows to the model."""


@dataclass
class RolloutConfig:
    """Sampling, and how far the rollout workers may run ahead of the learner."""

    in_flight: int = setting(64, minimum=1, maximum=100_000)
    """Trajectories that are being generated at the same time, over all workers."""
    queue_depth: int = setting(1, minimum=1, maximum=1_000, hint="engine.mode=sync has no queue")
    """Finished batches that may wait for the learner before no new trajectory is started."""
    max_policy_lag: int | None = setting(None, minimum=0, hint="null removes the bound")
    """Largest policy lag a trained token may have; empty: no bound, the lag is still measured."""
    publication: str = setting("in_flight", choices=("in_flight", "between_trajectories"))
    """New weights enter between two tokens, or only once every running trajectory of a worker has ended."""
    temperature: float = setting(1.0, above=0, hint="the logits are divided by it")
    """Sampling temperature; the learner divides its logits by the same number."""
    top_p: float = setting(1.0, above=0, maximum=1)
    """Nucleus of training samples; below 1 truncates support and needs `rollout.allow_truncated_sampling`."""
    top_k: int = setting(0, minimum=0)
    """Keep only the k likeliest tokens; 0 keeps all; other values need `rollout.allow_truncated_sampling`."""
    min_p: float = setting(0.0, minimum=0, maximum=1)
    """Drop tokens below this share of the likeliest; above 0 needs `rollout.allow_truncated_sampling`."""
    repetition_penalty: float = setting(1.0, above=0)
    """1 is none; other values need `rollout.allow_truncated_sampling`."""
    allow_truncated_sampling: bool = False
    """Accept sampling without full support although the importance ratio is then wrong."""
    max_new_tokens: int = setting(64, minimum=1)
    """Policy tokens in one trajectory, over all its turns."""
    max_turn_tokens: int | None = setting(None, minimum=1)
    """Policy tokens in one turn; empty: only the trajectory's limit holds."""
    max_context_tokens: int = setting(256, minimum=2, maximum=10_000_000)
    """Prompt, policy and observation tokens of one trajectory together."""


@dataclass
class ObjectiveConfig:
    """The FlashREINFORCE objective; every field is a keyword of `flashreinforce_loss`."""

    delta: float = setting(3e-3, minimum=0, hint="to switch the gate off set objective.gate=none")
    """Trust region: largest mean Bernoulli KL of an admitted trajectory (Eq. 8)."""
    gate: str = setting("sequence", choices=("sequence", "token", "none"))
    """Unit that the trust region admits or rejects; the method uses whole trajectories."""
    negative_token_fraction: float = setting(1.0, minimum=0, maximum=1)
    """Share of highest-entropy tokens kept in failed trajectories (Appendix C); 1 keeps all."""
    aggregation: str = setting("sample-mean", choices=("sample-mean", "token-mean", "constant-length"))
    """How token terms are averaged; the method gives every trajectory the same weight (Eq. 9)."""
    constant_length: int | None = setting(None, minimum=1)
    """Divisor of `constant-length` aggregation, in tokens."""
    importance_correction: bool = True
    """Weigh tokens by the importance ratio; off also switches the gate off (ablation)."""
    ratio_gradient: str = setting("detached", choices=("detached", "through"))
    """Gradient form: score function with a detached ratio (Eq. 11), or through the ratio (Appendix A)."""
    log_ratio_limit: float | None = setting(30.0, above=0, hint="null removes the clamp")
    """Numerical clamp of the log-ratio; empty: an overflow of an admitted token stops the run by name."""


@dataclass
class AlgorithmConfig:
    """Which algorithm trains; everything besides `flashreinforce` is a published baseline to compare with."""

    name: str = setting("flashreinforce", choices=("flashreinforce", "grpo"))
    """The method, or GRPO: rewards compared within a group of answers to one prompt."""
    clip: float = setting(0.2, above=0)
    """Clip range of GRPO's policy ratio; the method has none."""
    kl_coefficient: float = setting(0.0, minimum=0)
    """Weight of a KL term to a reference; the method has none."""
    kl_reference: str = setting("none", choices=("none", "model", "rollout"))
    """What the KL term compares with: a frozen model on its own GPUs, or the policy that sampled."""
    entropy_coefficient: float = setting(0.0, minimum=0)
    """Weight of an entropy bonus; the method has none."""


@dataclass
class OptimConfig:
    """AdamW and its schedule."""

    lr: float = setting(1e-6, above=0)
    """Peak learning rate."""
    beta1: float = setting(0.9, minimum=0, maximum=0.9999)
    """AdamW first-moment decay."""
    beta2: float = setting(0.95, minimum=0, maximum=0.99999)
    """AdamW second-moment decay."""
    eps: float = setting(1e-8, above=0)
    """AdamW denominator term."""
    weight_decay: float = setting(0.1, minimum=0)
    """Decoupled weight decay."""
    max_grad_norm: float = setting(1.0, above=0)
    """Global gradient norm above which gradients are scaled down."""
    schedule: str = setting("cosine", choices=("cosine", "constant"))
    """Shape after warm-up."""
    warmup_fraction: float = setting(0.03, minimum=0, maximum=1)
    """Share of the updates in which the learning rate rises linearly."""
    min_lr_fraction: float = setting(0.1, minimum=0, maximum=1)
    """Floor of the cosine, as a share of the peak."""


@dataclass
class TrainConfig:
    """The updates."""

    updates: int = setting(100, minimum=1)
    """Optimizer steps; each takes one fresh batch and discards it."""
    batch_size: int = setting(
        128, minimum=2, maximum=1_000_000, hint="a reward is compared with the mean of its batch (Eq. 5)"
    )
    """Trajectories in one update."""
    rollouts_per_prompt: int = setting(1, minimum=1)
    """Trajectories sampled for one prompt; the method takes one."""
    epochs_per_batch: int = setting(1, minimum=1)
    """Times that a batch is trained on; the method discards it after one."""
    micro_batch_size: int | None = setting(None, minimum=1)
    """Trajectories in one forward pass (of one GPU); empty: the whole batch at once."""
    logprob_chunk_tokens: int = setting(4096, minimum=1)
    """Tokens whose vocabulary logits exist at the same time in the learner."""
    check_on_policy: bool = True
    """Refuse to train when rollout and learner disagree about fresh tokens before the first update."""
    max_nonfinite_updates: int | None = setting(0, minimum=0, hint="null skips every such batch")
    """Batches with a loss or gradient that is not finite that a run skips; empty: any number; one more stops it."""


@dataclass
class WarmStartConfig:
    """Supervised steps before the first update, for models initialised here; never part of the method."""

    steps: int = setting(0, minimum=0)
    """Supervised steps on demonstrations of the environment; 0 switches the warm start off."""
    batch_size: int = setting(64, minimum=1)
    """Demonstrations in one step."""
    lr: float = setting(2e-3, above=0)
    """AdamW learning rate of the warm start."""
    correct_fraction: float = setting(0.5, minimum=0, maximum=1)
    """Share of demonstrations that are right; the others are plausible wrong answers."""


@dataclass
class EvaluationConfig:
    """Held-out evaluation by the learner's current weights."""

    every: int = setting(0, minimum=0)
    """Updates between evaluations; 0: only before the first and after the last update."""
    size: int = setting(256, minimum=0)
    """Held-out tasks; 0 switches evaluation off."""
    samples: int = setting(1, minimum=1)
    """Sampled answers for each task."""
    temperature: float = setting(1.0, above=0, hint="the logits are divided by it")
    """Sampling temperature of the evaluation."""
    top_p: float = setting(1.0, above=0, maximum=1)
    """Nucleus of the evaluation; truncation is allowed here."""
    at_start: bool = True
    """Evaluate before the first update."""
    max_new_tokens: int | None = setting(None, minimum=1)
    """Policy tokens of an evaluation answer; empty: as in training."""
    suites: dict[str, Any] = field(default_factory=dict)
    """Held-out suites by name: `{id, split, rows, path}`, and `revision` where it is known."""


@dataclass
class EngineConfig:
    """Where and how the run executes."""

    mode: str = setting("async", choices=("async", "sync"))
    """Asynchronous, or strictly one batch after the other with the same code."""
    deterministic: bool = False
    """Bit-identical runs for a seed on the same machine and versions; implies lockstep with one worker."""
    workers: int = setting(1, minimum=1, maximum=1_024)
    """Rollout worker processes."""
    max_worker_restarts: int = setting(3, minimum=0)
    """Rollout workers that a run starts again after they died, what they had in flight included; one more stops it."""
    threads: int = setting(1, minimum=1, maximum=1_024)
    """Torch threads in each process."""
    device: str = setting("cpu", choices=("cpu", "cuda"))
    """Device of the learner and of the rollout workers."""
    allow_other_versions: bool = False
    """Start although a pinned package has another version, so that numbers may differ; another Molt never starts."""


@dataclass
class ClusterConfig:
    """GPUs and how they are shared out; read by the Molt engine and by the resource plan."""

    nodes: int = setting(1, minimum=1, maximum=100_000)
    """Machines that the run may use."""
    gpus_per_node: int = setting(8, minimum=1, maximum=1_024)
    """GPUs in each machine."""
    gpu_memory_gib: float = setting(80.0, above=0)
    """Memory of one GPU, in GiB; the resource plan is held against it."""
    actor_nodes: int = setting(1, minimum=1)
    """Machines that hold the learner."""
    actor_gpus_per_node: int = setting(4, minimum=1)
    """GPUs of the learner on each of its machines."""
    tensor_parallel: int = setting(1, minimum=1)
    """Tensor-parallel size of the learner."""
    context_parallel: int = setting(1, minimum=1)
    """Context-parallel size of the learner."""
    expert_parallel: int = setting(1, minimum=1)
    """Expert-parallel size of the learner; above 1 only for mixture-of-experts models."""
    offload: str = setting("none", choices=("none", "optimizer", "full"))
    """What of the learner lives in CPU memory: nothing, the optimizer step, or the parameters too."""
    rollout_engines: int = setting(4, minimum=1)
    """vLLM engines."""
    rollout_tensor_parallel: int = setting(1, minimum=1)
    """GPUs of one vLLM engine."""
    rollout_expert_parallel: bool = False
    """Spread the experts of a mixture-of-experts model over the GPUs of an engine."""
    rollout_memory_share: float = setting(0.9, above=0, maximum=0.98)
    """Share of a rollout GPU's memory that vLLM may take."""


@dataclass
class MoltConfig:
    """The Molt engine: how its own machinery is used."""

    native: bool = True
    """Train with our registered loss and estimator; off: only Molt's own flags, for the base method."""
    agent: str | None = None
    """Python file with the class `AgentRunner`; empty: ours for `environment.name`."""
    model_path: str | None = None
    """Local copy of the pinned model, since Molt takes no revision; empty: derived from id and revision."""
    partial_rollout: bool = False
    """Let unfinished trajectories continue under new weights; needed when more are in flight than one batch."""
    routing_replay: bool = False
    """Replay the rollout's expert choices in the learner; mixture-of-experts models only."""
    prefix_caching: bool = False
    """Keep the KV cache of shared prefixes between turns."""
    packing: bool = False
    """Pack several trajectories into one row; refused, since it is not proven with our loss."""
    runners: int = setting(2, minimum=1)
    """Processes that drive agents and grade answers."""
    check_weights: bool = False
    """Verify every weight after each publication (slow)."""
    flags: dict[str, Any] = field(default_factory=dict)
    """Any other flag of Molt, such as `molt.flags.vllm.enforce_eager=true`; checked against its interface."""


@dataclass
class CheckpointConfig:
    """What is kept on disk."""

    every: int = setting(0, minimum=0)
    """Updates between checkpoints; 0: only the last one."""
    keep: int = setting(2, minimum=1)
    """Newest checkpoints that are kept."""


@dataclass
class TelemetryConfig:
    """What is reported, besides `metrics.jsonl`."""

    tensorboard: bool = True
    """Write TensorBoard events into the run directory."""
    live: str = setting("auto", choices=("auto", "always", "never"))
    """Live view in a terminal, plain lines otherwise; `auto` decides by the terminal."""
    dump_trajectories: int = setting(0, minimum=0)
    """Trajectories of each update that are saved under `trajectories/`; 0: none."""


@dataclass
class Config:
    """A whole run."""

    seed: int = setting(0, minimum=0, maximum=2**32 - 1)
    """Seed of initialisation, data order and sampling."""
    model: ModelConfig = field(default_factory=ModelConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    molt: MoltConfig = field(default_factory=MoltConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
