"""`flashreinforce_molt.molt.launch` on CPUs: its own steps, with a Ray that believes in GPUs."""

from __future__ import annotations

import os
import sys

from flashreinforce_molt.molt import launch

_cluster = launch.cluster


def _on_cpu(environment):
    gpus = int(os.environ["FAKE_GPUS"])
    return _cluster(
        environment,
        num_cpus=16,
        num_gpus=gpus,
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        object_store_memory=300_000_000,
    )


launch.cluster = _on_cpu

if __name__ == "__main__":
    sys.exit(launch.main())
