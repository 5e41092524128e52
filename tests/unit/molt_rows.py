"""The table of Molt's silent changes and late errors, as changes of a sound command."""

from published import flags_of, review_of

BASE = flags_of(review_of("qwen_math"))

# One entry for each row of the table of Molt's silent changes and late errors.
ROWS = {
    "IS on + top_p < 1": ({"rollout.top_p": 0.95}, "biases the log-probs"),
    "IS off + queue > 1": (
        {"algo.advantage.is_correction_level": "off", "train.async_queue_size": 4},
        "needs --train.async_queue_size 1 and no partial rollout",
    ),
    "IS off + partial rollout": (
        {"algo.advantage.is_correction_level": "off", "train.partial_rollout_enable": True},
        "needs --train.async_queue_size 1 and no partial rollout",
    ),
    "routing replay + partial rollout": (
        {"train.routing_replay": True, "train.partial_rollout_enable": True},
        "loses the routing of preempted trajectories",
    ),
    "routing replay + implied partial rollout": (
        {"train.routing_replay": True, "rollout.vllm_generate_batch_size": 2048},
        "loses the routing of preempted trajectories",
    ),
    "routing replay + MTP": (
        {"train.routing_replay": True, "vllm.mtp_num_speculative_tokens": 1},
        "corrupts log-probs together with --train.routing_replay",
    ),
    "MTP + prefix caching": (
        {"vllm.enable_prefix_caching": True, "vllm.mtp_num_speculative_tokens": 1},
        "corrupts log-probs together with --vllm.enable_prefix_caching",
    ),
    "packing + sdpa": ({"fsdp.packing_samples": True}, "with --fsdp.attn_implementation sdpa; use te"),
    "packing + eager": (
        {"fsdp.packing_samples": True, "fsdp.attn_implementation": "eager"},
        "with --fsdp.attn_implementation eager; use te",
    ),
    "packing + FA2": (
        {"fsdp.packing_samples": True, "fsdp.attn_implementation": "flash_attention_2"},
        "fails late on Molt's native model classes",
    ),
    "packing + our loss": (
        {"fsdp.packing_samples": True, "fsdp.attn_implementation": "te"},
        "not proven with our loss",
    ),
    "dynamic batch without packing": ({"train.dynamic_batch_enable": True}, "needs --fsdp.packing_samples"),
    "force_on_policy + epochs": ({"train.max_epochs": 2}, "contradicts --train.force_on_policy"),
    "threshold with three values": (
        {"algo.advantage.is_correction_threshold": [0.0, 1.0, 2.0]},
        "takes HIGH or LOW HIGH",
    ),
    "binary_kl + geo": (
        {"algo.advantage.is_correction_level": "geo"},
        "needs mode mask and level token or seq",
    ),
    "seq + clip": ({"algo.advantage.is_correction_mode": "clip"}, "needs level token, not seq"),
    "seq + trunc": ({"algo.advantage.is_correction_mode": "trunc"}, "needs level token, not seq"),
    "binary_kl + default band": (
        {"algo.advantage.is_correction_threshold": [0.5, 5.0]},
        "rejects everything; give one bound",
    ),
    "batch not divisible": ({"train.batch_size": 100, "train.micro_batch_size": 3}, "is no multiple of 12"),
    "group estimator with n = 1": (
        {"algo.advantage.estimator": "grpo"},
        "needs more than one sample per prompt",
    ),
    "KL with the default reference": ({"algo.kl.init_coef": 0.1}, "fails at run time"),
    "temperature 0": ({"rollout.temperature": 0.0}, "divides the logits by zero"),
    "queue 0": ({"train.async_queue_size": 0}, "must be 1 or more"),
    "KL k1 as a loss": ({"algo.kl.use_loss": True}, "has the wrong sign"),
    "dynamic filtering": ({"algo.dynamic_filtering_enable": True}, "needs several samples per prompt"),
    "score centering beside the gate": ({"algo.advantage.score_centering_top_k": 8}, "cannot stand beside"),
    "cispo without a ceiling": ({"actor.loss_mode": "cispo"}, "as a ceiling"),
    "dual clip": ({"actor.dual_clip": 0.5}, "needs a value above 1"),
    "pipeline parallelism": ({"fsdp.pp_size": 2}, "not pipeline-parallel"),
    "two length penalties": (
        {"reward.overlong_buffer_len": 100.0, "reward.stop_properly_penalty_coef": 0.5},
        "punish length twice",
    ),
    "no engines": ({"vllm.num_engines": 0}, "--vllm.num_engines is missing"),
    "evaluation batch 0": ({"eval.batch_size": 0}, "must be above 0"),
    "replay of saved batches": ({"train.rollout_replay_dir": "d"}, "trains on saved batches again"),
    "too few rollout batches": ({"rollout.batch_size": 2}, "do not reach 4 data-parallel replicas"),
    "full offload on one rank": (
        {"fsdp.offload": "full", "actor.num_gpus_per_node": 1},
        "needs more than one GPU",
    ),
    "distillation": ({"algo.advantage.estimator": "on_policy_distill"}, "trains on a teacher"),
}
SILENT = {
    "more in flight than a batch": (
        {"rollout.vllm_generate_batch_size": 2048},
        ("train.partial_rollout_enable", True),
    ),
    "routing replay": (
        {"train.routing_replay": True, "vllm.enable_prefix_caching": False},
        ("vllm.enable_prefix_caching", True),
    ),
    "images + packing": (
        {"data.max_images_per_prompt": 2, "fsdp.packing_samples": True, "fsdp.attn_implementation": "te"},
        ("fsdp.packing_samples", False),
    ),
    "dynamic batch + packing": (
        {"train.dynamic_batch_enable": True, "fsdp.packing_samples": True},
        ("rollout.max_tokens_per_gpu", 16192),
    ),
}
