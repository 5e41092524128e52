"""How rollout workers come to life. Imports no torch, so that it can run first."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver

_PRELOADED = ["flashreinforce_molt.rollout.worker"]


def prestart() -> None:
    """Start the server that workers are forked from; it imports torch while the learner's process does the same.

    Workers thus start in a moment, and are forked from a process without threads or a CUDA context, also when
    one is started again in the middle of a run.
    """
    multiprocessing.set_forkserver_preload(_PRELOADED)
    forkserver.ensure_running()
