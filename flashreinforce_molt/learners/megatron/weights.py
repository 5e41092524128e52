"""Hugging Face weights <-> this rank's Megatron parameters, exactly, under tensor, pipeline and expert parallelism.

Every mapping is a rearrangement, so whatever has the weights' layout (gradients, AdamW's moments, float32 masters)
travels by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from flashreinforce_molt.learners.megatron.architecture import NORMALISED_QUERIES

HFName = tuple[str, int | None]
"""A Hugging Face tensor, or one expert's slice of a stacked one."""


@dataclass(frozen=True)
class Weight:
    """One Megatron parameter and the Hugging Face tensors it is made of."""

    names: tuple[str, ...]
    """The parameter's name with global layer and expert numbers: local layers', then Transformer Engine's."""
    sources: tuple[HFName, ...]
    kind: str
    """replicated, vocabulary, qkv, gate_up, column or row: how sources are packed and shared over ranks."""
    expert: int | None = None


class HuggingFaceWeights:
    """Loads into, and exports from, one rank's part of a GPTModel; every method is collective over all ranks."""

    def __init__(self, model: nn.Module, hf: PreTrainedConfig, vocab_size: int) -> None:
        self._hf, self._vocab_size = hf, vocab_size
        self.parameters = dict(_with_global_names(model, hf))
        with torch.device("meta"):
            self.templates = dict(AutoModelForCausalLM.from_config(hf).named_parameters())
        """Hugging Face parameters by name, without values."""
        known = self._known_names()
        self._weights = [_resolved(weight, known) for weight in _weights_of(hf)]
        self._stage_of = self._owners()
        missing = set(self.parameters) - {weight.names[0] for weight in self._weights} - {_TIED_COPY}
        if missing:
            raise RuntimeError(f"no Hugging Face weight is mapped to {sorted(missing)}")

    @property
    def names(self) -> list[str]:
        """Hugging Face parameters, tied ones once, in the order of the Hugging Face model."""
        return list(self.templates)

    @torch.no_grad()
    def load(
        self, read: Callable[[str], Tensor], write: Callable[[nn.Parameter, Tensor], object] | None = None
    ) -> None:
        """Give every parameter its shard of `read(hf_name)`; `write` defaults to copying into the parameter."""
        write = write or (lambda parameter, shard: parameter.copy_(shard))
        for weight in self._weights:
            parameter = self.parameters.get(weight.names[0])
            tied_copy = (
                self.parameters.get(_TIED_COPY)
                if weight.kind == "vocabulary" and self._is_tied(weight)
                else None
            )
            if parameter is None and tied_copy is None:
                continue
            full = self._pack(weight, [_slice(read(name), expert) for name, expert in weight.sources])
            for target in (parameter, tied_copy):
                if target is not None:
                    write(target, self._shard(weight, full))

    @torch.no_grad()
    def export(
        self, read: Callable[[nn.Parameter], Tensor] | None = None, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Every Hugging Face tensor, whole, one after the other and on every rank.

        `read` takes another tensor of the parameter's shape instead of the parameter, of type `dtype`. Experts are
        exported one by one into their stacked tensor, so memory holds one tensor of the model at a time.
        """
        stacked: dict[str, Tensor] = {}
        for weight in self._weights:
            full = self._gather(weight, read or _itself, dtype)
            for (name, expert), tensor in zip(weight.sources, self._unpack(weight, full), strict=True):
                if expert is None:
                    yield name, tensor
                    continue
                if name not in stacked:
                    stacked[name] = tensor.new_empty(self.templates[name].shape)
                stacked[name][expert] = tensor
            done = (
                weight.expert is not None
                and weight.expert == self._hf.num_experts - 1
                and weight.kind == "row"
            )
            if done:
                yield from stacked.items()
                stacked = {}

    def _gather(
        self, weight: Weight, read: Callable[[nn.Parameter], Tensor], dtype: torch.dtype | None
    ) -> Tensor:
        """The packed tensor, joined over tensor-parallel ranks and sent to those that do not hold it."""
        parameter = self.parameters.get(weight.names[0])
        any_parameter = next(iter(self.parameters.values()))
        templates = [_slice(self.templates[name], expert) for name, expert in weight.sources]
        full = torch.empty_like(
            self._pack(weight, templates), dtype=dtype or any_parameter.dtype, device=any_parameter.device
        )
        tp = _tensor_group(weight)
        if parameter is not None:
            local = read(parameter).detach().contiguous()
            if weight.kind == "replicated" or tp is None or tp.size() == 1:
                full = local
            else:
                parts = [torch.empty_like(local) for _ in range(tp.size())]
                dist.all_gather(parts, local, group=tp)
                full = self._join(weight, parts)
        if weight.expert is not None and self._on_my_stage(weight):
            ep = parallel_state.get_expert_model_parallel_group()
            _send(full, ep, weight.expert // (self._hf.num_experts // ep.size()))
        _send(full, parallel_state.get_pipeline_model_parallel_group(), self._stage_of[weight.names[0]])
        return full

    def _on_my_stage(self, weight: Weight) -> bool:
        return self._stage_of[weight.names[0]] == parallel_state.get_pipeline_model_parallel_rank()

    def _known_names(self) -> set[str]:
        """Parameter names anywhere in the model."""
        everyone: list[set[str]] = [set()] * dist.get_world_size()
        dist.all_gather_object(everyone, set(self.parameters))
        return set().union(*everyone)

    def _owners(self) -> dict[str, int]:
        """The first pipeline stage that holds each parameter; for experts, any rank of it."""
        mine = (parallel_state.get_pipeline_model_parallel_rank(), sorted(self.parameters))
        everyone: list[tuple[int, list[str]]] = [mine] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        owners: dict[str, int] = {}
        for stage, names in sorted(everyone):
            for name in names:
                owners.setdefault(name, stage)
        return owners

    def _is_tied(self, weight: Weight) -> bool:
        return self._hf.tie_word_embeddings and weight.names[0] == _EMBEDDING

    def _pack(self, weight: Weight, parts: list[Tensor]) -> Tensor:
        if weight.kind == "vocabulary":
            return nn.functional.pad(parts[0], (0, 0, 0, self._vocab_size - len(parts[0])))
        if weight.kind == "qkv":  # per group of the key-value heads: its queries, key, value
            groups = self._hf.num_key_value_heads
            return torch.cat([part.view(groups, -1, *part.shape[1:]) for part in parts], 1).flatten(0, 1)
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _unpack(self, weight: Weight, full: Tensor) -> list[Tensor]:
        if weight.kind == "vocabulary":
            return [full[: self._hf.vocab_size]]
        if weight.kind == "qkv":
            groups, heads = self._hf.num_key_value_heads, self._hf.num_attention_heads
            by_group = full.view(groups, -1, *full.shape[1:])
            head = by_group.shape[1] // (heads // groups + 2)
            parts = by_group.split([by_group.shape[1] - 2 * head, head, head], 1)
            return [part.flatten(0, 1) for part in parts]
        if weight.kind == "gate_up" and len(weight.sources) == 2:
            return list(full.chunk(2))
        return [full]

    def _shard(self, weight: Weight, full: Tensor) -> Tensor:
        tp = _tensor_group(weight)
        if tp is None or weight.kind == "replicated":
            return full
        size, rank = tp.size(), tp.rank()
        if weight.kind == "gate_up":
            return torch.cat([half.chunk(size)[rank] for half in full.chunk(2)])
        return full.chunk(size, 1 if weight.kind == "row" else 0)[rank]

    def _join(self, weight: Weight, parts: list[Tensor]) -> Tensor:
        if weight.kind == "gate_up":
            halves = [part.chunk(2) for part in parts]
            return torch.cat([half[which] for which in (0, 1) for half in halves])
        return torch.cat(parts, 1 if weight.kind == "row" else 0)


_EMBEDDING = "embedding.word_embeddings.weight"
_TIED_COPY = "output_layer.weight"
"""Of tied embeddings the last pipeline stage holds a copy under this name."""


def _weights_of(hf: PreTrainedConfig) -> Iterator[Weight]:
    yield Weight((_EMBEDDING,), (("model.embed_tokens.weight", None),), "vocabulary")
    for layer in range(hf.num_hidden_layers):
        yield from _layer_weights(hf, layer)
    yield Weight(("decoder.final_layernorm.weight",), (("model.norm.weight", None),), "replicated")
    if not hf.tie_word_embeddings:
        yield Weight(("output_layer.weight",), (("lm_head.weight", None),), "vocabulary")


def _layer_weights(hf: PreTrainedConfig, layer: int) -> Iterator[Weight]:
    mine, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."

    def weight(names: str | tuple[str, ...], sources: tuple[str, ...], kind: str) -> Weight:
        names = (names,) if isinstance(names, str) else names
        return Weight(
            tuple(mine + name for name in names), tuple((theirs + source, None) for source in sources), kind
        )

    yield weight(
        ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"),
        ("input_layernorm.weight",),
        "replicated",
    )
    for part in ("weight", "bias") if hf.model_type == "qwen2" else ("weight",):
        projections = tuple(f"self_attn.{letter}_proj.{part}" for letter in "qkv")
        yield weight(f"self_attention.linear_qkv.{part}", projections, "qkv")
    if hf.model_type in NORMALISED_QUERIES:
        for letter in "qk":
            yield weight(
                f"self_attention.{letter}_layernorm.weight",
                (f"self_attn.{letter}_norm.weight",),
                "replicated",
            )
    yield weight("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), "row")
    yield weight(
        ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
        ("post_attention_layernorm.weight",),
        "replicated",
    )
    if _is_mixture(hf, layer):
        yield weight("mlp.router.weight", ("mlp.gate.weight",), "replicated")
        for expert in range(hf.num_experts):
            for fc, source, kind in (
                ("linear_fc1", "mlp.experts.gate_up_proj", "gate_up"),
                ("linear_fc2", "mlp.experts.down_proj", "row"),
            ):
                yield Weight(
                    (
                        f"{mine}mlp.experts.local_experts.{expert}.{fc}.weight",
                        f"{mine}mlp.experts.{fc}.weight{expert}",
                    ),
                    ((theirs + source, expert),),
                    kind,
                    expert,
                )
    else:
        yield weight("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), "gate_up")
        yield weight("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), "row")


def _is_mixture(hf: PreTrainedConfig, layer: int) -> bool:
    if hf.model_type != "qwen3_moe":
        return False
    return layer not in (hf.mlp_only_layers or ()) and (layer + 1) % hf.decoder_sparse_step == 0


def _with_global_names(model: nn.Module, hf: PreTrainedConfig) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters under the names they would have on one rank that held the whole model."""
    layers = getattr(getattr(model, "decoder", None), "layers", [])
    number = {str(place): layer.layer_number - 1 for place, layer in enumerate(layers)}
    first = 0
    if getattr(hf, "num_experts", None):
        ep = parallel_state.get_expert_model_parallel_world_size()
        first = parallel_state.get_expert_model_parallel_rank() * (hf.num_experts // ep)
    for name, parameter in model.named_parameters():
        name = re.sub(r"^decoder\.layers\.(\d+)\.", lambda m: f"decoder.layers.{number[m[1]]}.", name)
        name = re.sub(r"(local_experts\.)(\d+)", lambda m: f"{m[1]}{int(m[2]) + first}", name)
        name = re.sub(r"(experts\.linear_fc[12]\.weight)(\d+)$", lambda m: f"{m[1]}{int(m[2]) + first}", name)
        yield name, parameter


def _resolved(weight: Weight, known: set[str]) -> Weight:
    """The weight with the one name that this model's layers use."""
    present = tuple(name for name in weight.names if name in known)
    if len(present) != 1:
        raise RuntimeError(f"the model has {present or 'none'} of the parameters {weight.names}")
    return Weight(present, weight.sources, weight.kind, weight.expert)


def _tensor_group(weight: Weight) -> dist.ProcessGroup | None:
    """The ranks that share a weight; experts are whole (expert tensor parallel is 1)."""
    return parallel_state.get_tensor_model_parallel_group() if weight.expert is None else None


def _send(tensor: Tensor, group: dist.ProcessGroup, owner: int) -> None:
    if group.size() > 1:
        dist.broadcast(tensor, src=dist.get_global_rank(group, owner), group=group)


def _itself(parameter: nn.Parameter) -> Tensor:
    return parameter


def _slice(tensor: Tensor, expert: int | None) -> Tensor:
    return tensor if expert is None else tensor[expert]
