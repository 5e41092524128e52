"""The exact command of a run, its environment variables, and the way from a fresh machine to it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flashreinforce_molt.config.experiment import Experiment
from flashreinforce_molt.config.validate_cluster import model_shape
from flashreinforce_molt.molt.interface import arguments, molt_options
from flashreinforce_molt.review.molt_flags import Flag
from flashreinforce_molt.review.pins import pins_of

_CHECKOUT = (Path(__file__).resolve().parents[2] / "scripts" / "train_molt.py").is_file()


@dataclass(frozen=True)
class Request:
    """How the review was asked for, so that it can say how to start."""

    recipe: str | None = None
    variants: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    engine: str | None = None
    output: str | None = None
    resume: bool = False


@dataclass(frozen=True)
class Variable:
    """An environment variable of the run; a value of None must be set by the person."""

    name: str
    value: str | None
    why: str


def variables_of(experiment: Experiment) -> tuple[Variable, ...]:
    """What the environment of the run must hold."""
    if experiment.engine != "molt":
        return ()
    config, shape = experiment.config, model_shape(experiment.config)
    variables = []
    if shape is not None and config.rollout.max_context_tokens > shape.positions:
        why = f"vLLM refuses a context beyond the model's {shape.positions:,} positions otherwise"
        variables.append(Variable("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", why))
    if config.environment.name == "alfworld":
        variables.append(Variable("ALFWORLD_DATA", None, "folder of the ALFWorld games, on every machine"))
    return tuple(variables)


def needs_our_launch(experiment: Experiment) -> bool:
    """Our options are among the flags, so Molt's own entry point would not know them."""
    return experiment.config.molt.native or experiment.config.molt.agent is None


def command_of(experiment: Experiment, flags: Sequence[Flag], request: Request) -> tuple[str, ...]:
    """The words of the command that runs."""
    if experiment.engine != "molt":
        return tuple(_training_command(experiment, request))
    module = "flashreinforce_molt.molt.launch" if needs_our_launch(experiment) else "molt.cli.train_rl_ray"
    known = {flag.name: flag.value for flag in flags if flag.name in molt_options()}
    return ("python", "-m", module, *arguments(known))


def _training_command(experiment: Experiment, request: Request) -> list[str]:
    script = ["python", "scripts/train_molt.py"] if _CHECKOUT else ["flashreinforce-molt", "train"]
    words = [*script, "--recipe", request.recipe or experiment.recipe]
    for variant in request.variants:
        words += ["--variant", variant]
    for override in request.overrides:
        words += ["--set", override]
    if request.engine:
        words += ["--engine", request.engine]
    if request.output:
        words += ["--output", request.output]
    return [*words, "--resume"] if request.resume else words


_PINNED_BY_EXTRAS = ("molt-rl", "math-verify", "alfworld")


def _installation(experiment: Experiment) -> list[str]:
    """This package with the extras of the recipe, then the pinned versions that these leave open."""
    extras = "molt,tools,alfworld" if experiment.config.environment.name == "alfworld" else "molt,tools"
    ours = ["-e", f".[{extras}]"] if _CHECKOUT else [f"flashreinforce_molt[{extras}]"]
    pins = [
        f"{pin.name}=={pin.version}"
        for pin in pins_of(experiment)
        if pin.kind == "package" and pin.name not in _PINNED_BY_EXTRAS
    ]
    return [shlex.join(["pip", "install", *words]) for words in (ours, pins)]


def start_lines(experiment: Experiment, request: Request) -> tuple[str, ...]:
    """Shell lines from a fresh machine to the run."""
    words = _training_command(experiment, request)
    launch = shlex.join(words)
    if experiment.engine != "molt":
        return (launch,)
    config = experiment.config
    lines = _installation(experiment)
    if config.model.id is not None and config.molt.model_path != config.model.id:
        revision = ["--revision", config.model.revision] if config.model.revision else []
        target = ["--local-dir", str(config.molt.model_path)]
        lines.append(shlex.join(["hf", "download", config.model.id, *revision, *target]))
    prepared = [config.data.prepare] if config.data.prepare else []
    paths = [
        str(suite.get("path", "")) for suite in config.evaluation.suites.values() if isinstance(suite, dict)
    ]
    if any(path.startswith("data/math_eval/") for path in paths):
        prepared.append("math_eval")
    lines += [shlex.join(["flashreinforce-molt", "prepare", name]) for name in prepared]
    doctor = shlex.join(["flashreinforce-molt", "doctor", *words[2:]])
    return (*lines, doctor, launch)
