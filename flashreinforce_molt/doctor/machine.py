"""What can be asked of the machine; each answer is a plain value, and tests give their own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

_ASK_RAY = (
    "import json, ray; ray.init(address='auto', logging_level='ERROR', log_to_driver=False); "
    "print(json.dumps([ray.cluster_resources(), len([n for n in ray.nodes() if n['Alive']])]))"
)


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    memory_gib: float


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster that already runs."""

    gpus: int
    nodes: int


@dataclass
class Machine:
    """This machine, asked lazily."""

    folder: Path = field(default_factory=Path.cwd)
    """Where relative paths of the recipe begin."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    seconds: float = 60.0
    """Patience with another program."""

    def python(self) -> str:
        return platform.python_version()

    def version(self, package: str) -> str | None:
        """Installed version without its local part (`2.13.0+cu130` is 2.13.0); None when missing."""
        try:
            return metadata.version(package).partition("+")[0]
        except metadata.PackageNotFoundError:
            return None

    def gpus(self) -> list[Gpu]:
        """The GPUs that the NVIDIA driver shows, those hidden by CUDA_VISIBLE_DEVICES left out."""
        told = self._ask(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"])
        found = [line.rsplit(",", 1) for line in told.splitlines() if "," in line]
        gpus = [Gpu(name.strip(), float(memory) / 1024) for name, memory in found]
        visible = self.environ.get("CUDA_VISIBLE_DEVICES")
        return gpus if visible is None else gpus[: len([word for word in visible.split(",") if word.strip()])]

    def ray_cluster(self) -> RayCluster | None:
        """The running cluster that `address="auto"` finds; None when none answers. It is left as it is."""
        told = self._ask([sys.executable, "-c", _ASK_RAY])
        try:
            resources, nodes = json.loads(told.splitlines()[-1])
            return RayCluster(int(resources.get("GPU", 0)), int(nodes))
        except (ValueError, IndexError, AttributeError):
            return None

    def run(self, script: str) -> str | None:
        """None when a Python script succeeds in a process of its own, else the last line of what it said."""
        try:
            done = subprocess.run(
                [sys.executable, "-c", script],
                capture_output=True,
                text=True,
                timeout=self.seconds,
                cwd=self.folder,
                env=dict(self.environ),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        lines = done.stderr.strip().splitlines()
        return None if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")

    def _ask(self, command: list[str]) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.seconds, check=False)
            return done.stdout if done.returncode == 0 else ""
        except (OSError, subprocess.TimeoutExpired):
            return ""
