"""A run on this machine: collect, batch, correct, trust, optimize, discard."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from flashreinforce_molt.checkpoint import Checkpoint, RunState, newest_checkpoint, save_checkpoint
from flashreinforce_molt.config import Config, SettingError
from flashreinforce_molt.config.experiment import Experiment
from flashreinforce_molt.environments import make_suite, options_of
from flashreinforce_molt.evaluation import evaluate
from flashreinforce_molt.full_disk import full_disk, is_full_disk
from flashreinforce_molt.interrupts import Interrupts
from flashreinforce_molt.learners import ReportsLogProbs, make_learner
from flashreinforce_molt.learners.megatron import learner_layout
from flashreinforce_molt.learners.torch_learner import NonFiniteUpdateError, UpdateResult
from flashreinforce_molt.learners.warm_start import warm_start
from flashreinforce_molt.models import Policy, build_policy, load_policy
from flashreinforce_molt.nonfinite import REASON, save_batch, skipped_batches
from flashreinforce_molt.on_policy import (
    check_drift,
    check_log_probs,
    fresh_trajectories,
    full_support,
    sample_fresh,
)
from flashreinforce_molt.resuming import record_continuation, validate_same_method
from flashreinforce_molt.rollout.episodes import ENDINGS
from flashreinforce_molt.rollout.ledger import Ledger
from flashreinforce_molt.rollout.plan import bounds_of, is_lockstep, worker_plans
from flashreinforce_molt.rollout.pool import RolloutError, RolloutPool, WaitInterrupted
from flashreinforce_molt.rollout.processes import prestart
from flashreinforce_molt.rollout.weights import WeightStore
from flashreinforce_molt.telemetry import (
    LiveView,
    MetricsLog,
    SinkGroup,
    TensorBoardSink,
    create_run_directory,
    discard_unstarted,
    write_config,
    write_provenance,
    write_report,
)
from flashreinforce_molt.trajectory import Trajectory, TrajectoryBatch, save_trajectories

INTERRUPTED = 130
"""Exit code of a run that Ctrl-C ended in good order; `--resume` goes on with it."""


def train(
    experiment: Experiment,
    output: str | Path,
    *,
    resume: bool = False,
    accept_changes: bool = False,
    command: Sequence[str] | None = None,
) -> int:
    """Run an experiment on the local or Megatron engine and return the exit code, 0 or 130.

    Raises SettingError for a person's mistake before anything is written; RolloutError, OnPolicyError and
    FloatingPointError when the run itself fails.
    """
    prestart()
    disable_progress_bar()  # the live view is the only one that draws
    config = experiment.config
    _validate_machine(experiment)
    suite = make_suite(config.environment.name, options_of(config))
    suite.training_tasks(config.seed)  # a mistake in the data shows before anything is written
    held_out = suite.evaluation_tasks(config.evaluation.size) if config.evaluation.size else []
    run_dir = create_run_directory(output, resume=resume)
    if resume and not accept_changes:
        validate_same_method(run_dir, experiment)
    try:
        with ExitStack() as stack:
            view = stack.enter_context(
                LiveView(
                    config.train.updates,
                    recipe=" + ".join([experiment.recipe, *experiment.variants]),
                    run_dir=output,
                    engine=experiment.engine,
                    mode="sync" if is_lockstep(config) else "async",
                    delta=config.objective.delta,
                    live=config.telemetry.live,
                )
            )
            run = Run(experiment, run_dir, suite, held_out, view, stack, resume=resume, command=command)
            code = run.train()
    except BaseException as error:
        unstarted = discard_unstarted(run_dir)
        if isinstance(error, KeyboardInterrupt):
            kept = "nothing was trained yet, so nothing is kept" if unstarted else newest_name(run_dir)
            raise KeyboardInterrupt(f"stopped at once; {kept}") from None
        if is_full_disk(error):
            raise full_disk(run_dir, newest_name(run_dir)) from error
        raise
    if run.learner.updates_done:  # Ctrl-C may come before there is anything to draw
        write_report([run_dir], run_dir / "report.html")
    return code


def newest_name(run_dir: Path) -> str:
    """What `--resume` would go on from, in words."""
    names = sorted(path.name for path in (run_dir / "checkpoints").glob("update_*"))
    return f"--resume goes on from {names[-1]}" if names else "no checkpoint was written yet"


def _validate_machine(experiment: Experiment) -> None:
    """What the run needs and this machine lacks, before anything is written or loaded."""
    if experiment.config.engine.device == "cuda" and not torch.cuda.is_available():
        raise SettingError(
            "engine.device=cuda, but torch finds no GPU on this machine; use engine.device=cpu"
        )
    if experiment.engine == "megatron":
        if importlib.util.find_spec("megatron") is None:
            raise SettingError(
                "--engine megatron needs megatron-core: python -m pip install -e '.[megatron]'"
            )
        learner_layout(experiment.config)


class Run:
    """One run, from the first or from a checkpointed update to the last."""

    def __init__(
        self,
        experiment: Experiment,
        run_dir: Path,
        suite: Any,
        held_out: Sequence[Any],
        view: LiveView,
        stack: ExitStack,
        *,
        resume: bool,
        command: Sequence[str] | None,
    ) -> None:
        self.config: Config = experiment.config
        self.run_dir, self.suite, self.held_out, self.view, self.stack = run_dir, suite, held_out, view, stack
        torch.set_num_threads(self.config.engine.threads)
        torch.use_deterministic_algorithms(self.config.engine.deterministic)
        checkpoint = newest_checkpoint(run_dir / "checkpoints", view.message) if resume else None
        done = checkpoint.state.update if checkpoint else 0
        self._earlier_s = checkpoint.state.wall_s if checkpoint else 0.0
        self._began = time.monotonic()
        self._mark = _Mark(self._began, 0)
        self.interrupts = stack.enter_context(Interrupts(view.message))
        if checkpoint:
            view.message(f"resuming after update {done} from {checkpoint.path.name}")
            record_continuation(run_dir, experiment, done, command=command)
        else:
            self._record(experiment, command)
        self.log = stack.enter_context(MetricsLog(run_dir, resume_at=done if checkpoint else None))
        sinks = (
            [TensorBoardSink(run_dir, resume_at=done or None)] if self.config.telemetry.tensorboard else []
        )
        self.sinks = stack.enter_context(SinkGroup(sinks, view.message))
        self.policy = self._policy(checkpoint)
        self.learner = make_learner(experiment.engine, self.policy, self.config)
        stack.callback(self.learner.close)
        if checkpoint:
            checkpoint.restore(self.learner)
        self.pool = self._pool(checkpoint)
        self._must_check = self.config.train.check_on_policy and full_support(self.config)
        self._ratio_alarm_given = False
        self.interrupts.on_first = self.pool.stop_waiting

    def train(self) -> int:
        """Every update that is left; returns 0, or 130 after Ctrl-C."""
        config, stop = self.config, False
        if self.learner.updates_done == 0:
            self._evaluate()
        self.pool.start()
        self._mark = _Mark(time.monotonic(), self.pool.tokens_finished)
        while self.learner.updates_done < config.train.updates and not stop:
            try:
                stepped = self._update()
            except WaitInterrupted:
                break
            except NonFiniteUpdateError:
                self._checkpoint()  # also before the first update: --resume goes on behind the batch
                raise
            except RolloutError:
                if self.learner.updates_done:
                    self._checkpoint()  # what was learnt is whole; only the rollout ended
                raise
            done = self.learner.updates_done
            stop = self.interrupts.requested
            if not stepped:
                continue
            if config.evaluation.every and done % config.evaluation.every == 0 and not stop:
                self._evaluate()
            if config.checkpoint.every and done % config.checkpoint.every == 0 and not stop:
                self._checkpoint()
        if self.learner.updates_done == config.train.updates:
            self._evaluate()
        self._checkpoint()
        return INTERRUPTED if self.interrupts.requested else 0

    def _update(self) -> bool:
        """Take a batch and train on it; False when it was skipped because its numbers are not finite."""
        config, version = self.config, self.learner.updates_done
        waited_from = time.monotonic()
        trajectories = self.pool.take(config.train.batch_size)
        idle = time.monotonic() - waited_from
        if is_lockstep(config):
            trajectories.sort(key=lambda trajectory: trajectory.trajectory_id)
        batch = TrajectoryBatch(trajectories)
        fresh = self._fresh(batch, version) if self._must_check else []
        if fresh and isinstance(self.learner, ReportsLogProbs):
            self.view.message(check_log_probs(self.learner, fresh, config))
        try:
            result = self.learner.update(batch)
        except NonFiniteUpdateError as error:
            self._skip(batch, version, error)
            return False
        if fresh and not isinstance(self.learner, ReportsLogProbs):
            self.view.message(check_drift(result, fresh, config))
        self._must_check = False
        self.pool.publish(self.policy.model, version + 1)
        now, tokens = time.monotonic(), self.pool.tokens_finished
        since, self._mark = self._mark, _Mark(now, tokens)
        metrics = {
            "update": version + 1,
            **update_metrics(result),
            **batch_metrics(batch, version),
            **(ending_metrics(batch) if config.environment.max_turns > 1 else {}),
            "trajectories_total": self.pool.ledger.trained_total,
            "dropped_total": self.pool.ledger.dropped_total,
            "worker_restarts": self.pool.restarts,
            "reissued": self.pool.reissued,
            "retried": self.pool.retried,
            **{f"dropped_{reason}": count for reason, count in self.pool.ledger.dropped.items()},
            "nonfinite_updates": skipped_batches(self.pool),
            "ratio_alarm": int(self._recomputed(result, batch, version)),
            "rollout_tokens_per_s": (tokens - since.tokens) / (now - since.time),
            "learner_idle_s": idle,
            "step_s": now - since.time,
            "wall_s": self._wall_s(),
        }
        self.log.append(metrics)
        self.sinks.log(version + 1, metrics)
        self.view.update(metrics)
        if config.telemetry.dump_trajectories:
            self._dump(version + 1, batch)
        return True

    def _fresh(self, batch: TrajectoryBatch, version: int) -> list[Trajectory]:
        """Trajectories of the learner's own version, sampled here where the batch has none, as after a resume."""
        fresh = fresh_trajectories(batch, version, self._restored)
        if fresh or not isinstance(self.learner, ReportsLogProbs):
            return fresh
        return sample_fresh(batch, self.pool.store, self.pool.plans[0], version)

    def _skip(self, batch: TrajectoryBatch, version: int, error: NonFiniteUpdateError) -> None:
        """Keep a batch that is not finite for replay, count it as dropped, and stop where settings say so."""
        limit = self.config.train.max_nonfinite_updates
        self.pool.discard(len(batch), REASON)
        path = save_batch(
            self.run_dir,
            batch,
            self.policy,
            version=version,
            error=str(error),
            keep_weights=self.config.checkpoint.keep,
        )
        count = skipped_batches(self.pool)
        if limit is not None and count > limit:
            raise NonFiniteUpdateError(
                f"{error}. Look at it with --replay-batch {path}, go on behind it with --resume; "
                f"train.max_nonfinite_updates={limit} stops the run at number {count}"
            ) from error
        self.view.message(f"{error}; batch {count} of this kind, skipped and kept as {path}")

    def _recomputed(self, result: UpdateResult, batch: TrajectoryBatch, version: int) -> bool:
        """Whether every ratio is exactly 1 although older weights sampled; said once."""
        alarm = batch.policy_lag(version).max > 0 and int(result.stats["moved_tokens"]) == 0
        if alarm and not self._ratio_alarm_given:
            self._ratio_alarm_given = True
            self.view.message(
                f"WARNING, update {version + 1}: every importance ratio is exactly 1 although older weights sampled: "
                "behaviour log-probs were recomputed instead of recorded, or the weights do not change"
            )
        return alarm

    def _evaluate(self) -> None:
        update = self.learner.updates_done
        if not self.held_out or self.log.has_evaluation(update):
            return
        started = time.monotonic()
        result = {"update": update, **asdict(evaluate(self.policy, self.suite, self.held_out, self.config))}
        result["wall_s"] = self._wall_s()
        self.log.append_evaluation(result)
        self.sinks.evaluation(update, result)
        self.view.evaluation(result)
        self._mark = _Mark(self._mark.time + time.monotonic() - started, self._mark.tokens)

    def _checkpoint(self) -> None:
        ledger, position, waiting = self.pool.snapshot()
        state = RunState(self.learner.updates_done, position, ledger, self._wall_s())
        self.log.sync()
        path = save_checkpoint(
            self.run_dir / "checkpoints",
            self.policy,
            self.learner,
            state,
            waiting,
            keep=self.config.checkpoint.keep,
        )
        self.view.message(f"checkpoint {path.relative_to(self.run_dir)}")

    def _dump(self, update: int, batch: TrajectoryBatch) -> None:
        directory = self.run_dir / "trajectories"
        directory.mkdir(exist_ok=True)
        chosen = batch.trajectories[: self.config.telemetry.dump_trajectories]
        save_trajectories(directory / f"update_{update:06d}.safetensors", chosen)

    def _record(self, experiment: Experiment, command: Sequence[str] | None) -> None:
        write_config(self.run_dir, experiment.config)
        write_provenance(
            self.run_dir,
            recipe=experiment.recipe,
            variants=experiment.variants,
            settings=experiment.settings,
            engine=experiment.engine,
            command=command,
        )

    def _policy(self, checkpoint: Checkpoint | None) -> Policy:
        config = self.config
        if checkpoint:
            return load_policy(checkpoint.path, config.model, device=config.engine.device)
        policy = build_policy(config.model, seed=config.seed, device=config.engine.device)
        count = sum(parameter.numel() for parameter in policy.model.parameters())
        self.view.message(
            f"model {type(policy.model).__name__}, {count / 1e6:.2f} M parameters, {config.model.dtype}"
        )
        if config.warm_start.steps:
            self.view.message(
                f"warm start: {config.warm_start.steps} supervised steps (not part of the method)"
            )
            loss = warm_start(policy, self.suite, config)
            self.view.message(f"warm start done after {self._wall_s():.0f} s, loss {loss:.3f} nats per token")
        return policy

    def _pool(self, checkpoint: Checkpoint | None) -> RolloutPool:
        config = self.config
        waiting = checkpoint.waiting() if checkpoint else []
        self._restored = {trajectory.trajectory_id for trajectory in waiting}
        store = WeightStore(self.policy.model)
        store.publish(self.policy.model, self.learner.updates_done)
        pool = RolloutPool(
            worker_plans(config, self.policy),
            store,
            self.suite.training_tasks(config.seed),
            bounds_of(config),
            ledger=Ledger.from_state(checkpoint.state.ledger) if checkpoint else None,
            position=checkpoint.state.position if checkpoint else 0,
            finished=waiting,
            max_restarts=config.engine.max_worker_restarts,
            max_retries=config.environment.max_retries,
            on_message=self.view.message,
        )
        self.stack.callback(pool.close)
        return pool

    def _wall_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._began


class _Mark:
    """End of the previous update on the clock, and the tokens that had arrived by then."""

    def __init__(self, at: float, tokens: int) -> None:
        self.time, self.tokens = at, tokens


def update_metrics(result: UpdateResult) -> dict[str, float]:
    """What the optimizer step says of itself, under the names of `metrics.jsonl`."""
    stats = result.stats
    return {
        "acceptance_rate": float(stats["acceptance_rate"]),
        "sequence_kl_mean": float(stats["sequence_kl"].mean()),
        "sequence_kl_max": float(stats["sequence_kl"].max()),
        "ratio_max": float(stats["max_ratio"]),
        "top_token_share": float(stats["top_token_share"]),
        "clamped_tokens": int(stats["clamped_tokens"]),
        "retained_tokens": int(stats["retained_tokens"]),
        "entropy_mean": result.entropy_mean,
        "grad_norm": result.grad_norm,
        "lr": result.lr,
    }


def batch_metrics(batch: TrajectoryBatch, learner_version: int) -> dict[str, float]:
    """What a batch says of itself; every numeric fact of the environment becomes `NAME_mean`."""
    rewards = [trajectory.reward for trajectory in batch]
    lag = batch.policy_lag(learner_version)
    return {
        "reward_mean": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        "policy_lag_mean": lag.mean,
        "policy_lag_max": lag.max,
        "lag_in_flight": lag.in_flight,
        "lag_in_queue": lag.in_queue,
        "response_tokens_mean": statistics.fmean(trajectory.policy_tokens for trajectory in batch),
        "truncated_fraction": statistics.fmean(trajectory.finish_reason != "stop" for trajectory in batch),
        **_environment_metrics(batch.trajectories),
    }


def ending_metrics(batch: TrajectoryBatch) -> dict[str, float]:
    """Shares of the batch by what cut them short; `truncated_fraction` is their sum."""
    reasons = [trajectory.finish_reason for trajectory in batch]
    return {f"ended_by_{ending}": reasons.count(ending) / len(reasons) for ending in ENDINGS}


def _environment_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.info.items():
            if not isinstance(value, str):
                values.setdefault(f"{name}_mean", []).append(float(value))
    return {name: statistics.fmean(numbers) for name, numbers in values.items()}
