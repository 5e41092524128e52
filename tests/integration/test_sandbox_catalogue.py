"""The whole catalogue of attacks, behind every kind of wall, as root and as an ordinary user."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BACKENDS = ("namespaces", "landlock", "bubblewrap")
ORDINARY = "/usr/bin/python3"
"""An interpreter that every user may run."""


def skip_without(backend):
    if backend == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")


def held(command, environment):
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, cwd="/")
    if "sandbox layer 'landlock' is missing" in done.stderr:
        pytest.skip("this kernel does not offer Landlock")
    lost = [line for line in done.stdout.splitlines() if not line.endswith("held")][1:]
    assert done.returncode == 0, "\n".join([*lost, done.stderr[-3000:]])
    return done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_attack_is_held(backend):
    skip_without(backend)
    said = held(
        [sys.executable, str(ROOT / "benchmarks/sandbox_attacks.py"), "--backend", backend], dict(os.environ)
    )
    assert f"backend {backend}, layers" in said


@pytest.fixture(scope="module")
def public_copy():
    """The parts that the sandbox needs, where any user may read them."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        shutil.copytree(ROOT / "flashreinforce_molt/sandbox", f"{directory}/flashreinforce_molt/sandbox")
        shutil.copy(ROOT / "flashreinforce_molt/__init__.py", f"{directory}/flashreinforce_molt/__init__.py")
        shutil.copytree(ROOT / "benchmarks", f"{directory}/benchmarks")
        subprocess.run(["chmod", "-R", "a+rX", directory], check=True)
        yield directory


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_attack_is_held_for_an_ordinary_user(backend, public_copy):
    skip_without(backend)
    if os.getuid() != 0:
        pytest.skip("this is already an ordinary user; the other test covers it")
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    if (
        not os.path.exists(ORDINARY)
        or subprocess.run([ORDINARY, "-c", "import sys; assert sys.version_info >= (3, 10)"]).returncode
    ):
        pytest.skip(f"{ORDINARY} is not there or older than Python 3.10")
    nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "env",
        "-i",
        "PATH=/usr/bin:/bin",
    ]
    if (
        backend != "landlock"
        and subprocess.run([*nobody, "unshare", "--user", "true"], capture_output=True).returncode
    ):
        pytest.skip("ordinary users may not make user namespaces here")
    said = held(
        [*nobody, ORDINARY, f"{public_copy}/benchmarks/sandbox_attacks.py", "--backend", backend],
        {"PATH": "/usr/bin:/bin"},
    )
    assert "uid" in said.splitlines()[0]
