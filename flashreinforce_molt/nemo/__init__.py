"""The NeMo face: a typed loss for NeMo scripts, and recipes as hydra experiments. Needs the extra `[nemo]`.

Importing this loads `nemo.core`, which takes ten seconds or more; nothing else of the package does.
"""

from flashreinforce_molt.nemo.loss import FlashReinforceLoss

__all__ = ["FlashReinforceLoss"]
