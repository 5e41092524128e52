"""The learning rate of every update."""

from __future__ import annotations

import math

from flashreinforce_molt.config import OptimConfig


def learning_rate(config: OptimConfig, update: int, updates: int) -> float:
    """Learning rate of update `update` (0-based) of `updates`.

    Rises linearly over the first `warmup_fraction`, then stays, or falls as a half cosine to
    `min_lr_fraction` of the peak at the last update.
    """
    warmup = round(config.warmup_fraction * updates)
    if update < warmup:
        return config.lr * (update + 1) / warmup
    if config.schedule == "constant":
        return config.lr
    progress = (update - warmup) / max(1, updates - 1 - warmup)
    share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return config.lr * (config.min_lr_fraction + (1.0 - config.min_lr_fraction) * share)
