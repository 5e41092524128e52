import importlib.util
import json
import subprocess
import sys
from importlib import metadata

import pytest

from flashreinforce_molt.molt.cli_block import UnsupportedMolt
from flashreinforce_molt.molt.registration import check_version, expect_parameters, register

needs_molt = pytest.mark.skipif(
    importlib.util.find_spec("molt") is None or importlib.util.find_spec("ray") is None,
    reason="needs molt-rl 0.2.1: scripts/setup_molt_cpu.sh",
)


def run(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_another_version_is_refused_with_what_would_have_to_be_verified(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.3.0")
    with pytest.raises(UnsupportedMolt, match=r"molt-rl 0\.3\.0 .* 0\.2\.1 only.*PolicyTrainer"):
        check_version()


def test_a_missing_molt_is_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UnsupportedMolt, match=r"install molt-rl==0\.2\.1"):
        register()


def test_a_changed_function_is_refused_by_name():
    def train_step(self, samples): ...

    with pytest.raises(
        UnsupportedMolt, match=r"train_step takes \(self, samples\).*\(self, rollout_samples, \.\.\.\)"
    ):
        expect_parameters(train_step, "self", "rollout_samples")


@needs_molt
def test_registering_imports_nothing_and_costs_a_worker_next_to_nothing():
    script = (
        "import json, resource, sys, time; from importlib import metadata\n"
        "before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()\n"
        "from flashreinforce_molt.molt.registration import register; register()\n"
        "spent = time.perf_counter() - begun\n"
        "grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024\n"
        "heavy = [name for name in ('torch', 'ray', 'molt', 'omegaconf') if name in sys.modules]\n"
        "print(json.dumps([spent, grown, heavy]))"
    )
    measured = [json.loads(run(script)) for _ in range(3)]
    assert min(seconds for seconds, _, _ in measured) < 0.1
    assert max(megabytes for _, megabytes, _ in measured) < 30
    assert measured[0][2] == []


@needs_molt
@pytest.mark.parametrize("order", ["register(); import_molt()", "import_molt(); register(); register()"])
def test_molt_knows_us_whichever_comes_first(order):
    script = (
        "from flashreinforce_molt.molt import register\n"
        "def import_molt():\n"
        "    import molt.models.loss, molt.trainer.rollout.experience_maker\n"
        f"{order}\n"
        "from molt.models.loss import POLICY_LOSSES\n"
        "from molt.trainer.algorithm.advantage import ADVANTAGE_ESTIMATORS, GROUP_ADVANTAGE_ESTIMATORS\n"
        "from molt.trainer.rollout import experience_maker\n"
        "assert POLICY_LOSSES['flash'].__module__ == 'flashreinforce_molt.molt.policy_loss'\n"
        "assert ADVANTAGE_ESTIMATORS['flash_trajectory'].__module__ == 'flashreinforce_molt.molt.estimator'\n"
        "assert {'flash_trajectory', 'grpo'} < GROUP_ADVANTAGE_ESTIMATORS\n"
        "assert 'flash_trajectory' in experience_maker.GROUP_ADVANTAGE_ESTIMATORS\n"
        "import inspect; assert 'def register_policy_loss' in inspect.getsource(__import__('molt.models.loss').models.loss)\n"
        "print('known')"
    )
    assert run(script) == "known"
