"""Runs on a file system that has no room left: a small tmpfs in a mount namespace of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_helpers import RECIPE, metrics_of

from flashreinforce_molt.checkpoint import newest_checkpoint

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--mount", "--user", "--map-root-user"]
SETTINGS = ("evaluation.size=0", "warm_start.steps=0", "checkpoint.every=2", "train.updates=40")
SCRIPT = """
mount -t tmpfs -o size={size}k none {disk} || exit 99
{run} --set checkpoint.keep=50 {more} > {kept}/full.txt 2>&1
echo $? > {kept}/code
cp -r {disk}/run {kept}/run
{free}
{run} --resume --set checkpoint.keep=1 {more} > {kept}/resumed.txt 2>&1
echo $? >> {kept}/code
cp {disk}/run/metrics.jsonl {kept}/metrics.jsonl
"""


@pytest.mark.parametrize(
    ("size", "more", "free", "named"),
    [
        (1500, "", "rm -r {disk}/run/checkpoints/update_00000[24]", "checkpoints/"),
        (
            1500,
            "--set telemetry.dump_trajectories=8",
            "rm -r {disk}/run/checkpoints/update_00000[24]",
            "checkpoints/",
        ),
    ],
)
def test_a_full_disk_leaves_the_last_checkpoint_and_says_what_to_free(
    size: int, more: str, free: str, named: str, tmp_path: Path
) -> None:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no mount namespaces")
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    settings = " ".join(f"--set {setting}" for setting in SETTINGS)
    run = f"{sys.executable} {ROOT}/scripts/train_molt.py --recipe {RECIPE} --output {disk}/run {settings}"
    script = SCRIPT.format(size=size, disk=disk, run=run, kept=kept, more=more, free=free.format(disk=disk))
    done = subprocess.run([*NAMESPACE, "bash", "-c", script], capture_output=True, text=True, timeout=250)
    if done.returncode == 99:
        pytest.skip("this machine allows no tmpfs in a mount namespace")
    full, resumed = (kept / "full.txt").read_text(), (kept / "resumed.txt").read_text()
    assert (kept / "code").read_text().split() == ["1", "0"], full + resumed
    assert "run failed: no space left on the disk of" in full
    assert named in full
    assert "Traceback" not in full
    newest = newest_checkpoint(kept / "run" / "checkpoints", on_damage=pytest.fail)
    assert f"--resume goes on from {newest.path.name}" in full
    assert 2 <= newest.state.update < 40
    lines = metrics_of(kept)
    assert [line["update"] for line in lines] == list(range(1, 41))
