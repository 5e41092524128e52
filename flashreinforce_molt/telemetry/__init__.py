"""What a run leaves behind and what a person sees: metrics files, sinks, live view, report, provenance.

The public names load on first use; nothing here imports torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME_OF = {
    "EVALUATION_METRICS": "metric_table",
    "METRICS": "metric_table",
    "Metric": "metric_table",
    "MetricsLog": "metrics",
    "read_evaluations": "metrics",
    "read_metrics": "metrics",
    "LiveView": "live",
    "redact": "redaction",
    "write_report": "report",
    "RunDirectoryError": "run_directory",
    "create_run_directory": "run_directory",
    "discard_unstarted": "run_directory",
    "record_resume": "run_directory",
    "write_atomically": "run_directory",
    "write_config": "run_directory",
    "write_provenance": "run_directory",
    "Sink": "sinks",
    "SinkGroup": "sinks",
    "TensorBoardSink": "sinks",
    "TrackioSink": "sinks",
    "WandbSink": "sinks",
}

__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
