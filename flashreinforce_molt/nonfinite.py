"""A batch whose update was not finite: out of the ledger's trained ones, and onto the disk with the weights it met."""

from __future__ import annotations

import shutil
from pathlib import Path

from flashreinforce_molt.models import Policy
from flashreinforce_molt.rollout.pool import RolloutPool
from flashreinforce_molt.telemetry.run_directory import write_json
from flashreinforce_molt.trajectory import TrajectoryBatch, save_trajectories

FOLDER, REASON = "nonfinite", "nonfinite"
BATCH_FILE, RECORD_FILE = "batch.safetensors", "update.json"


def skipped_batches(pool: RolloutPool) -> int:
    """Batches that the whole run has dropped so; the ledger carries the count across a resume."""
    return -(-pool.ledger.dropped[REASON] // pool.bounds.batch_size)


def save_batch(
    run_dir: Path, batch: TrajectoryBatch, policy: Policy, *, version: int, error: str, keep_weights: int
) -> Path:
    """Write `nonfinite/update_NNNNNN/`: the batch, the weights `version` that met it, and the error; returns the batch.

    A batch is small and stays; weights are kept beside the newest `keep_weights` batches only.
    """
    parent = run_dir / FOLDER
    parent.mkdir(exist_ok=True)
    name = f"update_{version + 1:06d}"
    times = len(list(parent.glob(f"{name}*")))
    final = parent / (f"{name}_{times + 1}" if times else name)
    aside = parent / f".{final.name}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        policy.model.save_pretrained(aside, safe_serialization=True)
        policy.tokenizer.save_pretrained(aside)
        save_trajectories(aside / BATCH_FILE, batch)
        write_json(
            aside / RECORD_FILE,
            {"format": 1, "update": version + 1, "weights_version": version, "error": error},
        )
        aside.rename(final)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for old in sorted(parent.glob("update_*"), key=lambda path: path.stat().st_mtime)[:-keep_weights]:
        for weights in old.glob("model*.safetensors*"):
            weights.unlink()
    return final / BATCH_FILE
