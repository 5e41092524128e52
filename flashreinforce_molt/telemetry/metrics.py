"""The metrics of a run: one table that names and explains them, their files, and reading these back."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashreinforce_molt.telemetry.run_directory import write_atomically

METRICS_FILE = "metrics.jsonl"
EVALUATION_FILE = "evaluation.jsonl"

ENVIRONMENT_GROUP = "environment"
"""Group of every metric that an environment adds and that is not in the table."""

_LARGEST_UPDATE = 2**53
_NAME = re.compile(r"[a-z][a-z0-9_]{0,79}")


@dataclass(frozen=True)
class Metric:
    """One column of `metrics.jsonl` or `evaluation.jsonl`."""

    name: str
    unit: str
    meaning: str
    """One sentence: what is measured, over what."""
    reading: str
    """What a high, a low or a changing value says."""
    group: str
    """Heading in TensorBoard, in the report and on the reference page."""


METRICS: tuple[Metric, ...] = (
    Metric(
        "update",
        "count",
        "Number of the optimizer step, from 1.",
        "Every line is one update: no number is missing and none appears twice, also across a resume.",
        "progress",
    ),
    Metric(
        "reward_mean",
        "reward",
        "Mean reward of the batch's trajectories; the baseline that is subtracted in this update (Eq. 5).",
        "Should rise. It is measured on training prompts with an older policy, so trust the evaluation for claims.",
        "reward",
    ),
    Metric(
        "reward_std",
        "reward",
        "Standard deviation of the reward over the batch's trajectories.",
        "Near 0, all trajectories score the same and the update has almost no gradient.",
        "reward",
    ),
    Metric(
        "acceptance_rate",
        "fraction",
        "Share of the batch's trajectories that the trust region admits (Eq. 8).",
        "Usually above 0.99. Falling: the policy moves too fast for its lag; lower the rate or the lag.",
        "trust",
    ),
    Metric(
        "sequence_kl_mean",
        "nats per token",
        "Mean over trajectories of their drift, the mean Bernoulli KL between behaviour policy and learner (Eq. 7).",
        "Compare with `objective.delta`. Tiny: the correction has little to correct. It is a lower bound of the full KL.",
        "trust",
    ),
    Metric(
        "sequence_kl_max",
        "nats per token",
        "Largest drift of one trajectory in the batch, admitted or not.",
        "Above `objective.delta` that trajectory was rejected.",
        "trust",
    ),
    Metric(
        "ratio_max",
        "ratio",
        "Largest importance ratio of one token, over admitted trajectories.",
        "The gate bounds a mean, not a single weight: a large value means that one token dominates.",
        "trust",
    ),
    Metric(
        "top_token_share",
        "fraction",
        "Largest share of one token in the batch's absolute loss weight.",
        "Near 1 over the batch's policy tokens in a healthy run; near 1.0, one token is the whole gradient.",
        "trust",
    ),
    Metric(
        "policy_lag_mean",
        "versions",
        "Mean over policy tokens of the learner's version at the update minus the version that sampled the token.",
        "0 is on-policy. The sum of `lag_in_flight` and `lag_in_queue`.",
        "lag",
    ),
    Metric(
        "policy_lag_max",
        "versions",
        "Largest policy lag of one token in the batch.",
        "Never above `rollout.max_policy_lag` where that is set.",
        "lag",
    ),
    Metric(
        "lag_in_flight",
        "versions",
        "Part of the mean policy lag that arose while the trajectory was still being generated.",
        "Grows with response length and with `rollout.in_flight`.",
        "lag",
    ),
    Metric(
        "lag_in_queue",
        "versions",
        "Part of the mean policy lag that arose while the finished trajectory waited for the learner.",
        "Grows when the learner is the bottleneck, up to `rollout.queue_depth`.",
        "lag",
    ),
    Metric(
        "response_tokens_mean",
        "tokens",
        "Mean number of policy tokens in a trajectory (T_i), over all its turns.",
        "A steady climb together with truncation is a sign of length growth without benefit.",
        "response",
    ),
    Metric(
        "truncated_fraction",
        "fraction",
        "Share of trajectories that ended at a token limit instead of by themselves.",
        "High values mean that rewards judge unfinished answers; raise the limit or look at the answers.",
        "response",
    ),
    Metric(
        "entropy_mean",
        "nats",
        "Mean entropy of the learner's next-token distribution over the policy tokens.",
        "Falls as the policy becomes sure. Near 0 early: exploration is over. null: not computed in this run.",
        "response",
    ),
    Metric(
        "grad_norm",
        "norm",
        "Global gradient norm before clipping.",
        "Values above `optim.max_grad_norm` were scaled down to it. Spikes: look at `ratio_max` of the same update.",
        "optimizer",
    ),
    Metric(
        "lr",
        "rate",
        "Learning rate of this update.",
        "Follows `optim.schedule`.",
        "optimizer",
    ),
    Metric(
        "trajectories_total",
        "count",
        "Trajectories trained since the run began, across resumes.",
        "Rises by `train.batch_size` each update: every trajectory is trained once.",
        "trajectories",
    ),
    Metric(
        "dropped_total",
        "count",
        "Trajectories that ended without being trained since the run began, for a counted reason.",
        "Should stay near 0; the run log names the reasons.",
        "trajectories",
    ),
    Metric(
        "rollout_tokens_per_s",
        "tokens/s",
        "Policy tokens that the rollout workers sampled per second since the previous update.",
        "With `learner_idle_s` near 0 the learner is the bottleneck and this number is held back.",
        "throughput",
    ),
    Metric(
        "learner_idle_s",
        "s",
        "Part of `step_s` in which the learner waited for trajectories.",
        "Close to `step_s`: rollouts are the bottleneck. Close to 0: the learner is.",
        "throughput",
    ),
    Metric(
        "step_s",
        "s",
        "Time from the end of the previous update to the end of this one, waiting included, evaluation not.",
        "Its inverse is updates per second.",
        "throughput",
    ),
    Metric(
        "wall_s",
        "s",
        "Time since the run began, evaluation included; a pause between a stop and its resume is not counted.",
        "The axis to use when two runs are compared for speed.",
        "throughput",
    ),
)
"""Every metric that each update must report; the one place where they are named and explained."""

EVALUATION_METRICS: tuple[Metric, ...] = (
    Metric(
        "update",
        "count",
        "Updates that the evaluated policy has had; 0 is the policy before the first update.",
        "At 0 it shows what the model, with its warm start if it had one, could do before the method.",
        "evaluation",
    ),
    Metric(
        "sampled_accuracy",
        "fraction",
        "Share of held-out answers, sampled at the evaluation's temperature, that are exactly right.",
        "The headline number; its noise is about sqrt(p(1-p)/(tasks*samples)).",
        "evaluation",
    ),
    Metric(
        "greedy_accuracy",
        "fraction",
        "Share of held-out tasks whose most likely answer is exactly right.",
        "Above the sampled accuracy while the policy is still unsure. null: not measured.",
        "evaluation",
    ),
    Metric(
        "constant_answer_baseline",
        "fraction",
        "Accuracy of the single best constant answer on the same tasks.",
        "An accuracy near it may come from guessing the commonest answer. null: not measured.",
        "evaluation",
    ),
    Metric(
        "tasks",
        "count",
        "Held-out tasks.",
        "Disjoint from the training tasks.",
        "evaluation",
    ),
    Metric(
        "samples",
        "count",
        "Sampled answers for each task.",
        "More samples, less noise.",
        "evaluation",
    ),
    Metric(
        "wall_s",
        "s",
        "Time since the run began, at the end of this evaluation.",
        "Places the evaluation on the clock.",
        "evaluation",
    ),
)
"""What each evaluation must report; further fields are free."""

_GROUP_OF = {metric.name: metric.group for metric in METRICS}


def group_of(name: str) -> str:
    """Heading under which a metric is shown; whatever the table does not know belongs to the environment."""
    if name.startswith("dropped_"):
        return "trajectories"
    return _GROUP_OF.get(name, ENVIRONMENT_GROUP)


def plain_number(name: str, value: Any, where: str) -> int | float | None:
    """`value` as a JSON number, or None for 'not measured'; anything else is refused by name."""
    if hasattr(value, "item") and not isinstance(value, (int, float)):
        value = value.item()  # a scalar of numpy or torch
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: metric {name!r} must be a number or None, got {_short(value)}")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError(
            f"{where}: metric {name!r} is {_short(value)}, which is no number of JSON; give None if it was not measured"
        )
    return value


def validate_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """One line of `metrics.jsonl`: every metric of the table, then the environment's, all finite numbers or None."""
    update = _update_number(metrics.get("update"), "metrics", minimum=1)
    where = f"update {update}"
    missing = [metric.name for metric in METRICS if metric.name not in metrics]
    if missing:
        raise ValueError(
            f"{where}: missing metrics {', '.join(missing)}; give None for one that was not measured"
        )
    line: dict[str, Any] = {"update": update}
    for metric in METRICS[1:]:
        line[metric.name] = plain_number(metric.name, metrics[metric.name], where)
    for name, value in metrics.items():
        if name in line:
            continue
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{where}: metric name {name!r} must be lower case letters, digits and underscores"
            )
        line[name] = plain_number(name, value, where)
    return line


def validate_evaluation(result: Mapping[str, Any]) -> dict[str, Any]:
    """One line of `evaluation.jsonl`: the table's fields as numbers or None; further fields may be any JSON."""
    update = _update_number(result.get("update"), "evaluation", minimum=0)
    where = f"evaluation at update {update}"
    missing = [metric.name for metric in EVALUATION_METRICS if metric.name not in result]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}; give None for one that was not measured")
    line: dict[str, Any] = {"update": update}
    for metric in EVALUATION_METRICS[1:]:
        line[metric.name] = plain_number(metric.name, result[metric.name], where)
    for name, value in result.items():
        if name not in line:
            line[str(name)] = value
    return line


def _update_number(value: Any, where: str, *, minimum: int) -> int:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST_UPDATE:
        raise ValueError(f"{where}: 'update' must be an integer of at least {minimum}, got {_short(value)}")
    return value


class MetricsLog:
    """Appends one line per update to `metrics.jsonl`, and evaluations to `evaluation.jsonl`.

    A line reaches the file in one write or, when that fails (disk full), not at all. `resume_at=U` continues after
    update U: later lines, which the resumed run will write again, and a line cut off by a crash are removed first.
    """

    def __init__(self, run_dir: str | os.PathLike[str], resume_at: int | None = None) -> None:
        directory = Path(run_dir)
        self.metrics_path = directory / METRICS_FILE
        self.evaluation_path = directory / EVALUATION_FILE
        self._metrics_fd = self._evaluation_fd = -1
        self._evaluated: set[int] = set()
        if resume_at is None:
            for path in (self.metrics_path, self.evaluation_path):
                if path.exists() and path.stat().st_size > 0:
                    raise ValueError(
                        f"{path} already holds a run; choose another --output, or continue it with --resume"
                    )
            self._last_update: int | None = None
        else:
            self._last_update = self._cut_back_to(resume_at)
        self._metrics_fd = _open_for_append(self.metrics_path)
        try:
            self._evaluation_fd = _open_for_append(self.evaluation_path)
        except BaseException:
            self.close()
            raise

    def append(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Write one update; returns the validated line. ValueError names what is missing, not finite or out of order."""
        line = validate_metrics(metrics)
        if self._last_update is not None and line["update"] != self._last_update + 1:
            raise ValueError(
                f"{self.metrics_path}: update {line['update']} cannot follow update {self._last_update}"
            )
        _append_line(self._metrics_fd, self.metrics_path, line)
        self._last_update = line["update"]
        return line

    def append_evaluation(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write one evaluation; returns the validated line. An update is evaluated at most once."""
        line = validate_evaluation(result)
        if line["update"] in self._evaluated:
            raise ValueError(f"{self.evaluation_path}: update {line['update']} was already evaluated")
        _append_line(self._evaluation_fd, self.evaluation_path, line)
        self._evaluated.add(line["update"])
        return line

    def has_evaluation(self, update: int) -> bool:
        """Whether the evaluation after this update is already in the file (so that a resume need not repeat it)."""
        return update in self._evaluated

    def sync(self) -> None:
        """Force both files to the disk; call it before a checkpoint is committed, so that no resume finds a gap."""
        for descriptor in (self._metrics_fd, self._evaluation_fd):
            if descriptor >= 0:
                os.fsync(descriptor)

    def close(self) -> None:
        """Close both files; safe to call twice."""
        for name in ("_metrics_fd", "_evaluation_fd"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                os.close(descriptor)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _cut_back_to(self, update: int) -> int:
        update = _update_number(update, "resume_at", minimum=0)
        kept = []
        if self.metrics_path.exists():
            record = read_metrics(self.metrics_path)
            kept = [line for line in record.lines if line["update"] <= update]
            last = kept[-1]["update"] if kept else 0
            if last != update:
                raise ValueError(
                    f"{self.metrics_path} ends at update {last}, but the run resumes after update {update}: the lines "
                    f"between are lost; resume from a checkpoint of update {last} or earlier, or move the file away "
                    f"to start a new record at update {update + 1}"
                )
            if len(kept) != len(record.lines) or record.cut_line is not None:
                _rewrite(self.metrics_path, kept)
            else:
                _end_last_line(self.metrics_path)
        if self.evaluation_path.exists():
            evaluations = read_evaluations(self.evaluation_path)
            kept = [line for line in evaluations.lines if line["update"] <= update]
            if len(kept) != len(evaluations.lines) or evaluations.cut_line is not None:
                _rewrite(self.evaluation_path, kept)
            else:
                _end_last_line(self.evaluation_path)
            self._evaluated = {line["update"] for line in kept}
        return update


@dataclass(frozen=True)
class Record:
    """The lines of a metrics or evaluation file."""

    lines: tuple[dict[str, Any], ...]
    cut_line: int | None = None
    """Number of a last line that a crash cut off; it is not among `lines`."""


def read_metrics(path: str | os.PathLike[str]) -> Record:
    """Read `metrics.jsonl`. A cut last line is reported; any other damage is a ValueError that names the line."""
    record = _read_lines(Path(path))
    expected: int | None = None
    for number, line in enumerate(record.lines, start=1):
        where = f"{path}, line {number}"
        update = _update_number(line.get("update"), where, minimum=1)
        if expected is not None and update != expected:
            kind = (
                "appears twice or out of order"
                if update < expected
                else f"follows update {expected - 1}: a gap"
            )
            raise ValueError(f"{where}: update {update} {kind}")
        expected = update + 1
        for metric in METRICS:
            plain_number(metric.name, line.get(metric.name), where)
    return record


def read_evaluations(path: str | os.PathLike[str]) -> Record:
    """Read `evaluation.jsonl`, with the same rules; updates rise, but need not be consecutive."""
    record = _read_lines(Path(path))
    previous = -1
    for number, line in enumerate(record.lines, start=1):
        where = f"{path}, line {number}"
        update = _update_number(line.get("update"), where, minimum=0)
        if update <= previous:
            raise ValueError(f"{where}: update {update} appears twice or out of order")
        previous = update
        for metric in EVALUATION_METRICS:
            plain_number(metric.name, line.get(metric.name), where)
    return record


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer with thousands of digits
        return "a huge integer"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read_lines(path: Path) -> Record:
    data = path.read_bytes()
    texts = data.split(b"\n")
    unfinished = texts.pop()  # what follows the last newline: empty, or a line that was never finished
    lines = [_parse(text, f"{path}, line {number}") for number, text in enumerate(texts, start=1)]
    if not unfinished.strip(b"\0 \t\r"):
        return Record(tuple(lines), len(lines) + 1 if unfinished else None)
    try:
        lines.append(_parse(unfinished, str(path)))
    except ValueError:
        return Record(tuple(lines), len(lines) + 1)
    return Record(tuple(lines))


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite_float)
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where}: not a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: not a JSON object but {type(value).__name__}")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def _encode(line: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(line, allow_nan=False, separators=(", ", ": ")).encode("ascii") + b"\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"update {line.get('update')}: cannot be written as JSON ({error})") from None


def _open_for_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _append_line(descriptor: int, path: Path, line: Mapping[str, Any]) -> None:
    if descriptor < 0:
        raise ValueError(f"{path} is closed")
    data = _encode(line)
    start = os.fstat(descriptor).st_size
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError as error:
        os.ftruncate(descriptor, start)
        raise OSError(
            error.errno, f"cannot write update {line['update']} ({os.strerror(error.errno or 0)})", str(path)
        ) from error


def _rewrite(path: Path, lines: list[dict[str, Any]]) -> None:
    write_atomically(path, b"".join(_encode(line) for line in lines))


def _end_last_line(path: Path) -> None:
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        write_atomically(path, data + b"\n")
