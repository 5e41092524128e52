"""Where metrics go besides the run's own files."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flashreinforce_molt.telemetry.metric_table import group_of
from flashreinforce_molt.telemetry.redaction import redact

EVALUATION_GROUP = "evaluation"


class Sink(Protocol):
    """A place that follows a run."""

    def log(self, update: int, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of one update; None values and anything that is no number are left out."""

    def evaluation(self, update: int, result: Mapping[str, Any]) -> None:
        """Take the result of one evaluation."""

    def close(self) -> None:
        """Write what is pending and let go; safe to call twice."""


def tagged(metrics: Mapping[str, Any], group: str | None = None) -> dict[str, float]:
    """The numbers of `metrics` under grouped names, such as `reward/reward_mean` or `lag/lag_in_queue`."""
    return {
        f"{group or group_of(name)}/{name}": float(value)
        for name, value in metrics.items()
        if name != "update" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


class TensorBoardSink:
    """Scalars in an `events.*` file of the run directory, readable while the run goes on.

    `resume_at=U` tells TensorBoard to forget the points after update U that an earlier process wrote.
    """

    def __init__(self, run_dir: str | os.PathLike[str], resume_at: int | None = None) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard events need the package tensorboard: pip install tensorboard, or set telemetry.tensorboard=false"
            ) from error
        self._events, self._summaries = event_pb2, summary_pb2
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(Path(run_dir) / name, "xb")  # noqa: SIM115 (closed by close)
        try:
            self._records = RecordWriter(self._file)
            self._write(file_version="brain.Event:2")
            if resume_at is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                self._write(step=resume_at + 1, session_log=start)
        except BaseException:
            self._file.close()
            raise

    def log(self, update: int, metrics: Mapping[str, Any]) -> None:
        self._scalars(update, tagged(metrics))

    def evaluation(self, update: int, result: Mapping[str, Any]) -> None:
        self._scalars(update, tagged(result, EVALUATION_GROUP))

    def close(self) -> None:
        self._file.close()

    def _scalars(self, update: int, scalars: Mapping[str, float]) -> None:
        value = self._summaries.Summary.Value
        summary = self._summaries.Summary(
            value=[value(tag=tag, simple_value=x) for tag, x in scalars.items()]
        )
        self._write(step=update, summary=summary)

    def _write(self, **fields: Any) -> None:
        self._records.write(self._events.Event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()


class _TrackerSink:
    """What the W&B and trackio clients have in common: init, log with a step, finish."""

    package = ""

    def __init__(
        self, run_dir: str | os.PathLike[str], *, project: str, config: Mapping[str, Any] | None = None
    ) -> None:
        try:
            self._client = importlib.import_module(self.package)
        except ImportError as error:
            raise ImportError(
                f"this sink needs the package {self.package}: pip install {self.package}"
            ) from error
        directory = Path(run_dir)
        self._open = True
        self._begin(directory, project=project, name=directory.name, config=redact(dict(config or {})))

    def _begin(self, directory: Path, **options: Any) -> None:
        self._client.init(**options)

    def log(self, update: int, metrics: Mapping[str, Any]) -> None:
        self._client.log(tagged(metrics), step=update)

    def evaluation(self, update: int, result: Mapping[str, Any]) -> None:
        self._client.log(tagged(result, EVALUATION_GROUP), step=update)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._client.finish()


class WandbSink(_TrackerSink):
    """Weights & Biases; `WANDB_MODE=offline` keeps it on this machine."""

    package = "wandb"

    def _begin(self, directory: Path, **options: Any) -> None:
        self._client.init(dir=str(directory), **options)


class TrackioSink(_TrackerSink):
    """trackio, the local-first tracker of Hugging Face."""

    package = "trackio"


class SinkGroup:
    """Several sinks as one. A sink that fails is reported once and left out; it never stops the run."""

    def __init__(self, sinks: Sequence[Sink], warn: Callable[[str], None]) -> None:
        self._sinks = list(sinks)
        self._warn = warn

    def log(self, update: int, metrics: Mapping[str, Any]) -> None:
        self._each(lambda sink: sink.log(update, metrics))

    def evaluation(self, update: int, result: Mapping[str, Any]) -> None:
        self._each(lambda sink: sink.evaluation(update, result))

    def close(self) -> None:
        self._each(lambda sink: sink.close())
        self._sinks.clear()

    def __enter__(self) -> SinkGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _each(self, action: Callable[[Sink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                action(sink)
            except Exception as error:
                self._sinks.remove(sink)
                with contextlib.suppress(Exception):
                    sink.close()
                self._warn(
                    f"{type(sink).__name__} failed and is left out from now on: {type(error).__name__}: {error}"
                )
