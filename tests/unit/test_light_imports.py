import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "ray", "vllm", "numpy", "megatron", "rich")


@pytest.mark.parametrize(
    "module",
    [
        "flashreinforce_molt",
        "flashreinforce_molt.config",
        "flashreinforce_molt.config.reference",
        "flashreinforce_molt.config.validate",
        "flashreinforce_molt.recipes",
    ],
)
def test_configuration_and_recipes_import_no_heavy_library(module):
    script = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_alone_reads_no_configuration():
    script = "import sys, flashreinforce_molt; print([name for name in sys.modules if 'omegaconf' in name or 'yaml' in name])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
