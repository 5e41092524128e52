"""One run of Molt in a process of its own, and what it left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_register_timeout_seconds": "300",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "TQDM_DISABLE": "1",
}


@dataclass(frozen=True)
class MoltRun:
    code: int
    log: str
    metrics: list[dict[str, Any]]
    seconds: float
    left_running: list[str]
    """Commands of processes that belong to the run and outlived it."""

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.splitlines()[-lines:])


def command(model: Path, prompts: Path, run_dir: Path, changes: dict[str, Any]) -> list[str]:
    flags: dict[str, Any] = {
        "actor.model_name_or_path": model,
        "data.prompt_dataset": prompts,
        "data.input_key": "prompt",
        "data.label_key": "task",
        "data.apply_chat_template": True,
        "data.max_len": 96,
        "train.agent_path": ROOT / "flashreinforce_molt/molt/agent.py",
        "rollout.batch_size": 16,
        "rollout.max_new_tokens": 8,
        "rollout.num_runners": 1,
        "vllm.num_engines": 1,
        "vllm.enforce_eager": True,
        "vllm.gpu_memory_utilization": 0.1,
        "vllm.router_policy": "round_robin",
        "actor.loss_mode": "flash",
        "actor.loss_agg_mode": "seq-mean-token-mean",
        "algo.advantage.estimator": "flash_trajectory",
        "algo.advantage.is_correction_level": "seq",
        "algo.advantage.is_correction_gating": "binary_kl",
        "algo.advantage.is_correction_threshold": 0.05,
        "flash.delta": 0.05,
        "flash.log_ratio_limit": 30.0,
        "flash.environment": "letter_task:LetterTask",
        "flash.max_turns": 2,
        "flash.max_new_tokens": 12,
        "train.force_on_policy": True,
        "train.batch_size": 16,
        "train.micro_batch_size": 4,
        "train.check_weight_update_equal": True,
        "actor.num_gpus_per_node": 1,
        "actor.adam.lr": 1e-2,
        "actor.adam.weight_decay": 0.0,
        "actor.lr_scheduler": "constant",
        "actor.lr_warmup_ratio": 0.0,
        "actor.gradient_checkpoint": "none",
        "fsdp.attn_implementation": "sdpa",
        "ckpt.path": run_dir / "checkpoints",
        "ckpt.save_steps": -1,
        "ckpt.disable_final_save": True,
        **changes,
    }
    words: list[str] = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def environment(gpus: int, run_id: str) -> dict[str, str]:
    paths = [str(HERE / "cpu_shim"), str(HERE), str(ROOT)]
    return {
        **os.environ,
        **ENVIRONMENT,
        "FAKE_GPUS": str(gpus),
        "MOLT_RUN_ID": run_id,
        "PYTHONPATH": os.pathsep.join(paths),
    }


def run_molt(
    folder: Path, prompts: int, *, interrupt_after: int | None = None, timeout_s: float = 1200, **changes: Any
) -> MoltRun:
    """Train on `prompts` tasks; `changes` are flags with `__` for the dot.

    `interrupt_after` sends Ctrl-C once that many updates are in the metrics.
    """
    from letter_task import LetterTask
    from tiny_policy import save_tiny_policy

    from flashreinforce_molt.molt.task_rows import write_task_rows

    flags = {name.replace("__", "."): value for name, value in changes.items()}
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text("")
    tasks = LetterTask()
    write_task_rows([tasks[position] for position in range(prompts)], folder / "tasks.jsonl")
    words = command(save_tiny_policy(folder / "model"), folder / "tasks.jsonl", run_dir, flags)
    gpus = 1 + int(flags.get("actor.num_gpus_per_node", 1))
    metrics, run_id, began = run_dir / "metrics.jsonl", uuid.uuid4().hex, time.monotonic()

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []

    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "run_on_cpu.py"), *words],
            env=environment(gpus, run_id),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            while process.poll() is None and time.monotonic() - began < timeout_s:
                time.sleep(0.05)  # replayed updates take a fraction of a second
                if interrupt_after is not None and len(lines()) >= interrupt_after:
                    process.send_signal(signal.SIGINT)
                    process.wait(timeout=120)
        finally:
            if process.poll() is None:
                process.kill()
    time.sleep(3)
    return MoltRun(
        process.wait(),
        (folder / "log.txt").read_text(),
        lines(),
        time.monotonic() - began,
        list(processes_of(run_id).values()),
    )


def processes_of(run_id: str) -> dict[int, str]:
    """Process id -> command of what was started with this MOLT_RUN_ID."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and run_id.encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = command.decode(errors="replace")
        except OSError:
            continue
    return found
