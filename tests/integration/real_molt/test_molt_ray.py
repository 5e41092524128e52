"""The worker hook in a real Ray: every worker knows our loss, a missing package is named, a cluster stays as it was."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

pytest.importorskip("molt", reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh")
pytest.importorskip("ray", reason="needs ray: scripts/setup_molt_cpu.sh")

from molt_run import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[3]
OPTIONS = "num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, logging_level='ERROR'"


def run(script, *, cwd, python_path=ROOT, **variables):
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(python_path), **variables}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=cwd, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def test_every_worker_knows_us_also_a_nested_one_with_its_own_environment(tmp_path):
    script = f"""
from flashreinforce_molt.molt.launch import cluster
with cluster({{"PYTHONPATH": {str(ROOT)!r}}}, {OPTIONS}):
    import ray

    @ray.remote(num_cpus=0)
    class Inner:
        def names(self):
            import sys
            loaded = [name for name in ("torch", "molt") if name in sys.modules]
            import molt.models.loss, molt.trainer.algorithm.advantage as advantage
            return loaded, "flash" in molt.models.loss.POLICY_LOSSES, "flash_trajectory" in advantage.ADVANTAGE_ESTIMATORS

    @ray.remote(num_cpus=0)
    class Outer:
        def names(self):
            nested = Inner.options(runtime_env={{"env_vars": {{"X": "1"}}}}).remote()
            return ray.get(nested.names.remote())

    print("inner", ray.get(Inner.remote().names.remote()))
    print("outer", ray.get(Outer.remote().names.remote()))
"""
    code, said = run(script, cwd=tmp_path)
    assert code == 0, said
    assert "inner ([], True, True)" in said
    assert "outer ([], True, True)" in said


def test_a_worker_without_the_package_is_named_with_the_fix(tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from flashreinforce_molt.config import SettingError
from flashreinforce_molt.molt import launch
try:
    with launch.cluster({{"PYTHONPATH": ""}}, {OPTIONS}):
        print("started")
except SettingError as error:
    print("refused:", error)
"""
    code, said = run(script, cwd=tmp_path, python_path="")
    assert code == 0, said
    assert "started" not in said
    assert "cannot load the plugin" in said
    assert "pip install 'flashreinforce_molt[molt]==" in said


def test_a_cluster_that_ran_before_keeps_running(tmp_path):
    run_id = uuid.uuid4().hex
    short = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # socket paths are limited to 107 characters
    ray = [str(Path(sys.executable).with_name("ray"))]
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(ROOT),
        "MOLT_RUN_ID": run_id,
    }
    start = [
        *ray,
        "start",
        "--head",
        "--num-cpus=4",
        "--port=0",
        "--include-dashboard=false",
        f"--temp-dir={short}",
    ]
    subprocess.run(start, env=environment, check=True, capture_output=True, timeout=120)
    try:
        script = f"""
from flashreinforce_molt.molt.launch import cluster
with cluster({{"PYTHONPATH": {str(ROOT)!r}}}, address="auto"):
    print("inside")
import ray
ray.init(address="auto")
print("alive", sum(node["Alive"] for node in ray.nodes()))
"""
        code, said = run(script, cwd=tmp_path)
        assert code == 0, said
        assert "inside" in said
        assert "alive 1" in said
    finally:
        for process in processes_of(run_id):  # never `ray stop`, which ends every Ray of the machine
            os.kill(process, signal.SIGKILL)
