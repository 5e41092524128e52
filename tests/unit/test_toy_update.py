"""The first thing that a newcomer runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_toy_update_runs_and_shows_every_term():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    shown = subprocess.run(
        [sys.executable, "examples/toy_update.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    header, *rows = shown.stdout.splitlines()[:7]
    assert header.split() == ["trajectory", "reward", "advantage", "drift", "gate", "ratios"]
    rewards, advantages, drifts, gates = zip(*(row.split()[1:5] for row in rows), strict=True)
    baseline = sum(map(float, rewards)) / len(rewards)
    for reward, advantage, drift, gate in zip(rewards, advantages, drifts, gates, strict=True):
        assert abs(float(reward) - baseline - float(advantage)) < 2e-3
        assert gate == ("admitted" if float(drift) <= 3e-3 else "rejected")
    assert set(gates) == {"admitted", "rejected"}
    assert float(re.search(r"gradient norm +(\S+)", shown.stdout)[1]) > 0
    assert re.search(r"^loss +[+-]0\.\d+$", shown.stdout, re.MULTILINE)
