"""Every setting of a run, as dataclasses that OmegaConf reads; nothing here imports torch."""

from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.config.experiment import Check, Experiment, Setting
from flashreinforce_molt.config.schema import (
    AlgorithmConfig,
    CheckpointConfig,
    ClusterConfig,
    Config,
    DataConfig,
    EngineConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ModelConfig,
    MoltConfig,
    ObjectiveConfig,
    OptimConfig,
    RolloutConfig,
    TelemetryConfig,
    TrainConfig,
    WarmStartConfig,
)

__all__ = [
    "AlgorithmConfig",
    "Check",
    "CheckpointConfig",
    "ClusterConfig",
    "Config",
    "DataConfig",
    "EngineConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "Experiment",
    "ModelConfig",
    "MoltConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "RolloutConfig",
    "Setting",
    "SettingError",
    "TelemetryConfig",
    "TrainConfig",
    "WarmStartConfig",
]
