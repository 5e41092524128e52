"""Every setting of a run, as dataclasses that OmegaConf reads; nothing here imports torch."""

from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.config.experiment import Check, Experiment, Setting
from flashreinforce_molt.config.schema import (
    CheckpointConfig,
    Config,
    EngineConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimConfig,
    RolloutConfig,
    TelemetryConfig,
    TrainConfig,
    WarmStartConfig,
)

__all__ = [
    "Check",
    "CheckpointConfig",
    "Config",
    "EngineConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "Experiment",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "RolloutConfig",
    "Setting",
    "SettingError",
    "TelemetryConfig",
    "TrainConfig",
    "WarmStartConfig",
]
