"""The directory of one run: made safely, and told what ran in it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from flashreinforce_molt import __version__
from flashreinforce_molt.telemetry.redaction import redact

CONFIG_FILE = "config.yaml"
PROVENANCE_FILE = "provenance.json"

_REPORTED_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "omegaconf",
    "reasoning-gym",
    "rich",
    "tensorboard",
    "math-verify",
    "molt-rl",
    "ray",
    "vllm",
    "megatron-core",
    "nemo-toolkit",
)


class RunDirectoryError(ValueError):
    """The run directory cannot be used as asked; the message names the path and the fix."""


def create_run_directory(path: str | os.PathLike[str], *, resume: bool = False) -> Path:
    """Make the directory of a new run, or take an existing one to resume; returns its absolute path.

    Only its owner may enter a new one (0o700). An existing one loses write permission for everybody else.
    """
    directory = Path(path).expanduser().absolute()
    if directory.exists() and not directory.is_dir():
        raise RunDirectoryError(f"{directory} is a file; choose another --output")
    exists = directory.is_dir()
    try:
        occupied = exists and any(directory.iterdir())
        if resume and not occupied:
            raise RunDirectoryError(
                f"{directory} {'is empty' if exists else 'does not exist'}, so there is nothing to resume; "
                "leave out --resume, or give the --output of the run to continue"
            )
        if occupied and not resume:
            resumable = any(directory.glob("checkpoints/*"))
            other = (
                "continue the run in it with --resume" if resumable else "remove it: it holds no checkpoint"
            )
            raise RunDirectoryError(f"{directory} is not empty; choose another --output, or {other}")
        _make_directories(directory)
        mode = stat.S_IMODE(directory.stat().st_mode)
        if mode & stat.S_IWOTH:
            directory.chmod(mode & ~stat.S_IWOTH)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise RunDirectoryError(f"{directory} is not writable; choose another --output")
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunDirectoryError(f"{directory} cannot be used: {reason}; choose another --output") from error
    return directory


def discard_unstarted(directory: Path) -> bool:
    """Remove the files of a run that made no update and no checkpoint, so that its command can be given again.

    Returns whether it was such a run; what other programs put there is left alone.
    """
    metrics = directory / "metrics.jsonl"
    if (directory / "checkpoints").exists() or (metrics.exists() and metrics.stat().st_size):
        return False
    ours = [CONFIG_FILE, PROVENANCE_FILE, metrics.name, "evaluation.jsonl"]
    for path in [*(directory / name for name in ours), *directory.glob("events.out.tfevents.*")]:
        path.unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()
    return True


def _make_directories(directory: Path) -> None:
    if directory.is_dir():
        return
    for parent in reversed(directory.parents):
        if not parent.is_dir():
            parent.mkdir(0o755, exist_ok=True)
    directory.mkdir(0o700, exist_ok=True)


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part: aside, fsync, rename."""
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644 & ~_umask())
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    parent = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_config(run_dir: str | os.PathLike[str], config: Any) -> Path:
    """Write the resolved settings (dataclass, OmegaConf or dict), without secrets, as `config.yaml`."""
    import yaml

    path = Path(run_dir) / CONFIG_FILE
    text = yaml.safe_dump(redact(_as_dict(config)), sort_keys=False, allow_unicode=True, width=110)
    write_atomically(path, text)
    return path


def _as_dict(config: Any) -> Any:
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    if isinstance(config, dict):
        return config
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True)


def write_provenance(
    run_dir: str | os.PathLike[str],
    *,
    recipe: str | None,
    variants: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    engine: str | None = None,
    command: Sequence[str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write `provenance.json`: what ran, from which code, with which versions, and where each setting came from.

    `settings` maps each name to {"value": ..., "source": ...}, or to an object with these attributes, such as those of
    a resolved experiment; `command` defaults to this process's own command line.
    """
    path = Path(run_dir) / PROVENANCE_FILE
    content = {
        "package": "flashreinforce_molt",
        **_circumstances(command),
        "recipe": recipe,
        "variants": list(variants),
        "engine": engine,
        "settings": setting_entries(settings or {}),
        "resumes": [],
        **(extra or {}),
    }
    write_json(path, content)
    return path


def setting_entries(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings as `provenance.json` holds them: value, source and layer by name."""
    return {name: _setting_entry(setting) for name, setting in settings.items()}


def _setting_entry(setting: Any) -> dict[str, Any]:
    if isinstance(setting, Mapping):
        return dict(setting)
    entry = {"value": setting.value, "source": setting.source}
    layer = getattr(setting, "layer", None)
    return entry if layer is None else {**entry, "layer": layer}


def record_resume(
    run_dir: str | os.PathLike[str], update: int, *, command: Sequence[str] | None = None
) -> None:
    """Add to `provenance.json` that the run continued after `update`, with the code and versions of now."""
    path = Path(run_dir) / PROVENANCE_FILE
    try:
        content = json.loads(path.read_text("utf-8"))
        resumes = content.setdefault("resumes", [])
        if not isinstance(resumes, list):
            raise ValueError("resumes is no list")
        resumes.append({"update": update, **_circumstances(command)})
    except FileNotFoundError:
        raise RunDirectoryError(
            f"{path} is missing, so the run cannot be continued honestly; start a new one"
        ) from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); restore it, or start a new run") from None
    write_json(path, content)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON without secrets, atomically."""
    write_atomically(
        path, json.dumps(redact(content), indent=2, ensure_ascii=False, default=_described) + "\n"
    )


def _described(value: Any) -> str:
    return redact(str(value))


def _circumstances(command: Sequence[str] | None) -> dict[str, Any]:
    words = ["python", *sys.argv] if command is None else list(command)
    return {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(redact([str(word) for word in words])),
        "version": __version__,
        "git": _git_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": _installed_versions(),
    }


def _installed_versions() -> dict[str, str]:
    versions = {}
    for name in _REPORTED_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git_state() -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout that this package runs from; None for an installed package."""
    package = Path(__file__).resolve().parent.parent
    try:
        top = _git(package, "rev-parse", "--show-toplevel")
        if Path(top).resolve() != package.parent:
            return None  # installed inside somebody else's repository
        return {
            "commit": _git(package, "rev-parse", "HEAD"),
            "dirty": bool(_git(package, "status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
