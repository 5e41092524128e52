"""For tests only: Molt's training and weight refit on CPUs, by gloo and CPU tensors in place of NCCL and CUDA.

Loaded lazily: a process that never loads Molt pays nothing. Molt's own code runs everywhere else.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import inspect
import sys
import textwrap


def stand_in_for_cuda(_module=None):
    """The few torch.cuda functions that Molt's training path calls, and gloo where it asks for NCCL."""
    import torch
    from torch import distributed

    if getattr(torch.cuda, "_molt_on_cpu", False):
        return
    torch.cuda._molt_on_cpu = True
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu
    torch.cuda.current_stream = lambda *args, **kwargs: None
    torch.cuda.get_device_name = lambda *args, **kwargs: "cpu"
    for name in ("synchronize", "reset_peak_memory_stats", "empty_cache", "set_device"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    init = distributed.init_process_group
    distributed.init_process_group = lambda backend=None, **kwargs: init(backend="gloo", **kwargs)


class _CpuTorch:
    """`torch` for one module: every device is the CPU."""

    def __init__(self, torch):
        self.__dict__["torch"] = torch

    def __reduce__(self):
        return importlib.import_module, ("torch",)

    def __getattr__(self, name):
        return getattr(self.__dict__["torch"], name)

    def device(self, *_args):
        return self.torch.device("cpu")

    def empty(self, *args, **kwargs):
        return self.torch.empty(*args, **{**kwargs, "device": "cpu"})


def _cpu_module(module):
    stand_in_for_cuda()
    module.torch = _CpuTorch(module.torch)


def _broadcast_over_tcp(module):
    class Broadcast:
        def __init__(self, group):
            self.group = group

        def broadcast(self, tensor, src, stream=None):
            mine = tensor.cpu() if self.group.rank == src else None
            tensor.copy_(self.group.broadcast_obj(mine, src))

    def connect(address, port, rank, world, device):
        from vllm.distributed.utils import StatelessProcessGroup

        return Broadcast(StatelessProcessGroup.create(host=address, port=port, rank=rank, world_size=world))

    module.stateless_init_process_group = connect


def _receive_on_cpu(module):
    source = inspect.getsource(module.WorkerWrap.update_weights_packed)
    source = source.replace('device="cuda"', 'device="cpu"').replace("torch.cuda.current_stream()", "None")
    namespace = {}
    exec(textwrap.dedent(source), namespace)
    module.WorkerWrap.update_weights_packed = namespace["update_weights_packed"]


_PATCHES = {
    "nemo_automodel._transformers.auto_model": _cpu_module,
    "molt.trainer.fsdp.strategy": stand_in_for_cuda,
    "molt.trainer.workers.actor_group": stand_in_for_cuda,
    "molt.trainer.workers.policy_actor": _cpu_module,
    "molt.utils.distributed_util": _broadcast_over_tcp,
    "molt.trainer.vllm.vllm_worker_wrap": _receive_on_cpu,
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in _PATCHES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        load = spec.loader.exec_module

        def load_and_patch(module):
            load(module)
            _PATCHES[name](module)

        spec.loader.exec_module = load_and_patch
        return spec


def install():
    if not any(
        type(finder).__name__ == "_Finder" and type(finder).__module__ == __name__ for finder in sys.meta_path
    ):
        sys.meta_path.insert(0, _Finder())
