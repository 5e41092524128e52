"""What a run needs of its GPUs, as a pure function of sizes.

The learner, after Molt's FSDP2: fp32 weights, gradients and two AdamW moments (16 bytes for each parameter), sharded over
all its GPUs; the layer at work and its successor gathered in 16 bits; one saved input for each layer (full
checkpointing) and the inner tensors of one layer; the logits of one microbatch with their gradient, in 16 bits,
and a float32 copy of 256 tokens at a time.

A vLLM engine: 16-bit weights over its GPUs, 3 GiB for CUDA graphs and work buffers, and the rest for keys and values.

Parameter counts are exact for the models in `config/model_shapes.py` (tested: published counts, and what transformers builds). The rest has
not been held against a GPU: take the activation and logits terms as good to about a third.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashreinforce_molt.config.model_shapes import ModelShape

GIB = 1024**3
ENGINE_OVERHEAD = 3 * GIB
_STATE_BYTES = 16
_HALF, _FULL = 2, 4
_LOGPROB_CHUNK = 256
HEADROOM = 0.92
"""Share of an actor GPU that may be planned: the rest goes to the CUDA context, NCCL and fragmentation."""


@dataclass(frozen=True)
class PlanRequest:
    """The sizes that a plan is made from."""

    actor_gpus: int
    tensor_parallel: int
    context_parallel: int
    expert_parallel: int
    optimizer_offload: bool
    parameter_offload: bool
    micro_batch: int
    batch_size: int
    context_tokens: int
    new_tokens: int
    engines: int
    engine_gpus: int
    memory_share: float
    in_flight: int
    gpu_memory_gib: float
    gradient_checkpointing: bool = True


@dataclass(frozen=True)
class Memory:
    """Parts of one GPU's memory in bytes, and the memory that there is for them."""

    parts: tuple[tuple[str, int], ...]
    available: int

    @property
    def certain(self) -> int:
        """The first part alone: weights and what belongs to them, which no estimate enters."""
        return self.parts[0][1]

    @property
    def total(self) -> int:
        return sum(size for _, size in self.parts)

    @property
    def fits(self) -> bool:
        return self.total <= self.available

    @property
    def text(self) -> str:
        listed = ", ".join(f"{name} {size / GIB:.1f}" for name, size in self.parts if size >= 0.05 * GIB)
        verdict = "fits" if self.fits else "DOES NOT FIT"
        return f"{self.total / GIB:.1f} GiB of {self.available / GIB:.1f} usable ({listed}): {verdict}"


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    parameters: int
    active_parameters: int
    actor: Memory
    rollout: Memory
    kv_capacity_tokens: int
    """Tokens whose keys and values fit into one engine."""
    full_length_slots: int
    """Trajectories of full context that one engine holds at once."""
    in_flight_per_engine: int
    tokens_per_update_limit: int
    """Policy tokens of a batch in which every trajectory reaches its limit."""

    @property
    def fits(self) -> bool:
        return self.actor.fits and self.rollout.fits

    @property
    def waits(self) -> bool:
        """More trajectories of full length are in flight than an engine can hold."""
        return self.in_flight_per_engine > self.full_length_slots


def make_plan(shape: ModelShape, request: PlanRequest) -> Plan:
    """The memory of one GPU of each role."""
    actor = Memory(_actor_parts(shape, request), int(request.gpu_memory_gib * GIB * HEADROOM))
    budget = int(request.gpu_memory_gib * GIB * request.memory_share)
    weights = _HALF * shape.parameters // request.engine_gpus
    kv_per_token = shape.kv_bytes_per_token // min(request.engine_gpus, shape.kv_heads)
    capacity = max(0, budget - weights - ENGINE_OVERHEAD) // kv_per_token
    per_engine = -(-request.in_flight // request.engines)
    wanted = min(per_engine, capacity // request.context_tokens or 1) * request.context_tokens * kv_per_token
    rollout = Memory((("weights", weights), ("work", ENGINE_OVERHEAD), ("KV cache", wanted)), budget)
    return Plan(
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        actor=actor,
        rollout=rollout,
        kv_capacity_tokens=capacity,
        full_length_slots=capacity // request.context_tokens,
        in_flight_per_engine=per_engine,
        tokens_per_update_limit=request.batch_size * request.new_tokens,
    )


def _actor_parts(shape: ModelShape, request: PlanRequest) -> tuple[tuple[str, int], ...]:
    state = _STATE_BYTES * shape.parameters // request.actor_gpus
    if request.parameter_offload:
        state = 0
    elif request.optimizer_offload:
        state = state // 2
    dense_layer = shape.layer_parameters - shape.expert_parameters
    gathered_layer = dense_layer + shape.expert_parameters // request.expert_parallel
    gathered = _HALF * (2 * gathered_layer + shape.embedding_parameters) // request.tensor_parallel
    tokens = request.micro_batch * request.context_tokens // request.context_parallel
    saved = _HALF * tokens * shape.hidden * shape.layers
    width = shape.intermediate * (shape.experts_per_token or 1)
    inner = _HALF * tokens * (8 * shape.hidden + 4 * width // request.tensor_parallel)
    if not request.gradient_checkpointing:
        inner *= shape.layers
    logits = 2 * _HALF * tokens * shape.vocab // request.tensor_parallel
    chunk = 2 * _FULL * min(tokens, _LOGPROB_CHUNK) * shape.vocab // request.tensor_parallel
    return (
        ("weights, gradients, AdamW", state),
        ("gathered layers", gathered),
        ("activations", saved + inner),
        ("logits and log-probs", logits + chunk),
    )
