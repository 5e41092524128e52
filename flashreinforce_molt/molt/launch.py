"""Start Molt with our plugin: `python -m flashreinforce_molt.molt.launch` and Molt's own flags, ours among them.

Everything that can be wrong is found before a model loads: Molt's parser and checks, our refusals, the loss and the
agent's environment are built here in the driver, and every node of the cluster is asked for the package.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from flashreinforce_molt import __version__
from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.molt.agent_settings import AgentSettings
from flashreinforce_molt.molt.cli_block import UnsupportedMolt, molt_root, parse_molt_command
from flashreinforce_molt.molt.native_checks import is_native, refuse_unproven
from flashreinforce_molt.molt.registration import WORKER_HOOK, check_version, register
from flashreinforce_molt.telemetry.redaction import redact

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_LAST_LINES = 15


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of Molt and return the exit code: 0 done, 2 refused, 1 failed, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        args = prepare(words)
        with cluster(worker_environment(args)):
            run(args)
    except (SettingError, UnsupportedMolt) as error:
        print(redact(f"error: {error}"), file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; --ckpt.load_enable continues from the newest checkpoint", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        _report(error)
        return FAILED
    return DONE


def prepare(words: Sequence[str]) -> SimpleNamespace:
    """Molt's validated namespace, with everything built once that would otherwise fail late in a worker.

    Raises SettingError or UnsupportedMolt.
    """
    check_version()
    refuse_changed_checkout()
    command = parse_molt_command(words)
    args = command.args
    for notice in command.notices:
        print(f"Molt: {notice}")
    if is_native(args):
        refuse_unproven(args)
    if not Path(args.train.agent_path).is_file():
        raise SettingError(f"--train.agent_path {args.train.agent_path} is not a file")
    agent = AgentSettings.of(args)
    if agent is not None:
        from flashreinforce_molt.environments import make_suite

        make_suite(agent.environment, dict(agent.options))
    register()
    _build_loss(args)
    return args


def refuse_changed_checkout() -> None:
    """A Molt that runs from a git checkout must be the code that its version names.

    Raises SettingError when files differ from the commit.
    """
    root = molt_root().parent
    if not (root / ".git").exists():
        return
    done = subprocess.run(
        ["git", "-C", str(root), "status", "--porcelain", "--", "molt"], capture_output=True, text=True
    )
    if done.returncode != 0 or done.stdout.strip():
        changed = done.stdout.split("\n")[0].strip() or done.stderr.strip()
        raise SettingError(
            f"Molt's checkout {root} differs from its commit ({changed}); commit, stash, or install the release"
        )


def worker_environment(args: SimpleNamespace) -> dict[str, str]:
    """What every worker of the run must see."""
    from flashreinforce_molt.molt.run_metrics import VARIABLE

    environment = dict(importlib.import_module("molt.cli.train_rl_ray")._ray_runtime_env_vars())
    agent = AgentSettings.of(args)
    if agent is not None:
        environment |= agent.variable()
    run_dir = Path(args.ckpt.path).absolute().parent
    if (run_dir / "config.yaml").is_file():  # made by the training command, not by a bare call of this module
        environment[VARIABLE] = str(run_dir)
    source = Path(__file__).resolve().parents[2]
    if source.name != "site-packages":
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH")]))
    return environment


@contextmanager
def cluster(environment: Mapping[str, str], **options: Any) -> Iterator[None]:
    """Ray with our hook in every worker, left as it was found: a cluster that ran before keeps running.

    SIGTERM ends a run as Ctrl-C does. Raises SettingError when a node lacks the package.
    """
    import ray

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            runtime_env={"env_vars": dict(environment), "worker_process_setup_hook": WORKER_HOOK}, **options
        )
        signal.signal(signal.SIGTERM, interrupt)  # Ray has set its own, which exits with 1
        probe_nodes()
        yield
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, before)


def probe_nodes(timeout_s: float = 120.0) -> None:
    """Ask one worker on every node which versions it has.

    Raises SettingError that names the node and the fix.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(num_cpus=0, max_retries=0)(_versions)
    ours = _versions()
    for node in (node for node in ray.nodes() if node["Alive"]):
        where = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        try:
            theirs = ray.get(probe.options(scheduling_strategy=place).remote(), timeout=timeout_s)
        except Exception as error:
            raise SettingError(
                f"node {where} cannot load the plugin: {_last_line(error)}. Install the same version there with "
                f"`pip install 'flashreinforce_molt[molt]=={__version__}'`, or share this folder with it"
            ) from error
        if theirs != ours:
            raise SettingError(f"node {where} has {theirs}, the driver {ours}; install the same versions")


def _versions() -> dict[str, str]:
    from importlib import metadata

    return {"flashreinforce_molt": __version__, "molt-rl": metadata.version("molt-rl")}


def run(args: SimpleNamespace) -> None:
    """Molt's own `train`.

    Raises RuntimeError when it ends without one update, which Molt calls a success: a dead engine or an agent that
    always fails drops every rollout until the prompts are used up.
    """
    import ray

    from flashreinforce_molt.molt.version_stamps import open_board

    board = open_board()
    importlib.import_module("molt.cli.train_rl_ray").train(args)
    if not args.eval.eval_only and ray.get(board.current.remote()) == 0:
        raise RuntimeError(
            "the prompts are used up and no update was made; the log says why each rollout was dropped "
            "(lines with `[runner] dropping`)"
        )


def _build_loss(args: SimpleNamespace) -> None:
    """Molt builds its loss in a worker after every engine has started; here a wrong combination is found at once."""
    loss = importlib.import_module("molt.models.loss")
    corrected = args.algo.advantage.is_correction_level != "off"
    try:
        loss.PolicyLoss(
            clip_eps_low=args.actor.eps_clip_low_high[0],
            clip_eps_high=args.actor.eps_clip_low_high[1],
            dual_clip=args.actor.dual_clip,
            loss_mode=args.actor.loss_mode,
            is_correction_level=args.algo.advantage.is_correction_level,
            is_correction_mode=args.algo.advantage.is_correction_mode,
            is_correction_threshold=args.algo.advantage.is_correction_threshold if corrected else None,
            loss_agg_mode=args.actor.loss_agg_mode,
            is_correction_gating=args.algo.advantage.is_correction_gating,
            score_centering=args.algo.advantage.score_centering_top_k > 0,
        )
        if is_native(args):
            from flashreinforce_molt.molt.native_loss import NativeOptions

            NativeOptions.of(args)
    except (ValueError, AssertionError) as error:
        raise SettingError(f"the loss cannot be built: {error}") from error


def _report(error: Exception) -> None:
    """The end of a failure, and where the rest is."""
    lines = "".join(traceback.format_exception_only(type(error), error)).rstrip().splitlines()
    print("run failed:", *redact(lines[-_LAST_LINES:]), sep="\n  ", file=sys.stderr)
    logs = Path("/tmp/ray/session_latest/logs").resolve()
    if logs.is_dir():
        print(f"logs of every worker: {logs}", file=sys.stderr)


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
