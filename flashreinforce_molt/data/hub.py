"""Files of a data set on the Hugging Face hub, at one commit; without network it fails within two seconds.

The hub's client keeps trying for half a minute, so whether the hub answers is asked first, with a limit of our own.
"""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flashreinforce_molt.data.errors import DataError
from flashreinforce_molt.data.files import local_files, split_files

PROBE_LIMIT_S = 1.5
_ANSWER_LIMIT_S = 20


@dataclass(frozen=True)
class HubFiles:
    """Files of one split and the commit that they are of."""

    files: tuple[Path, ...]
    revision: str


def hub_files(id: str, split: str, revision: str | None) -> HubFiles:
    """Download what is not in the hub's cache; no network is needed when a pinned revision is there.

    Raises DataError that says what to do when the hub, the data set or the revision cannot be reached.
    """
    if revision and (cached := _cached(id, split, revision)):
        return HubFiles(cached, revision)
    if _offline_by_choice():
        raise DataError(_advice(id, "HF_HUB_OFFLINE is set, and the hub's cache does not hold it"))
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if (problem := _unreachable(endpoint)) is not None:
        raise DataError(_advice(id, f"{endpoint} does not answer ({problem})"))
    return _download(id, split, revision, endpoint)


def _download(id: str, split: str, revision: str | None, endpoint: str) -> HubFiles:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    api = HfApi(endpoint=endpoint)
    try:
        info = api.dataset_info(id, revision=revision, timeout=_ANSWER_LIMIT_S)
        if not info.sha:
            raise DataError(_advice(id, "the hub gave no revision"))
        names = split_files([file.rfilename for file in info.siblings or ()], split, where=f"data set {id}")
        files = [
            api.hf_hub_download(
                id,
                name,
                repo_type="dataset",
                revision=info.sha,
                cache_dir=_cache_folder(),
                etag_timeout=_ANSWER_LIMIT_S,
            )
            for name in names
        ]
    except GatedRepoError as error:
        raise DataError(_advice(id, "it asks for an account; accept its terms and set HF_TOKEN")) from error
    except RevisionNotFoundError as error:
        raise DataError(_advice(id, f"the hub has no revision {revision} of it")) from error
    except RepositoryNotFoundError as error:
        raise DataError(_advice(id, "the hub knows no such data set, or it is private")) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(_advice(id, reason)) from error
    return HubFiles(tuple(Path(file) for file in files), info.sha)


def _cached(id: str, split: str, revision: str) -> tuple[Path, ...] | None:
    snapshot = _cache_folder() / f"datasets--{id.replace('/', '--')}" / "snapshots" / revision
    if not snapshot.is_dir():
        return None
    try:
        return local_files(snapshot, split)
    except DataError:  # another split, or a download that was interrupted
        return None


def _cache_folder() -> Path:
    home = Path(
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def _offline_by_choice() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


@cache
def _unreachable(endpoint: str) -> str | None:
    """Why nothing answers there; None when something does, whatever it says. Asked once in a process."""
    answer: list[str | None] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(endpoint, timeout=PROBE_LIMIT_S):
                answer.append(None)
        except urllib.error.HTTPError:
            answer.append(None)
        except (OSError, ValueError) as error:
            answer.append(str(getattr(error, "reason", error)))

    # Looking up a name has no time limit of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_LIMIT_S)
    return answer[0] if answer else f"no answer within {PROBE_LIMIT_S:g} s"


def _advice(id: str, problem: str) -> str:
    return (
        f"data set {id}: {problem}. Download it elsewhere (hf download --repo-type dataset {id} --local-dir DIR) and "
        "give the file or folder with --source"
    )
