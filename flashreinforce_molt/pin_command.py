"""`flashreinforce-molt pin`: resolve the revision of every unpinned data set once, and write the lock file."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.config.locks import DATASETS
from flashreinforce_molt.recipes import available_recipes, resolve_experiment
from flashreinforce_molt.telemetry.run_directory import write_atomically

_LOCK = Path(__file__).resolve().parent.parent / "recipes" / "locks" / DATASETS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--lock", metavar="FILE", default=str(_LOCK), help="lock file to write")


def run(options: argparse.Namespace) -> int:
    """Ask the Hugging Face hub for every data set of the recipes that the lock file does not hold."""
    added = write_lock(Path(options.lock), hub_revision)
    for id, revision in added.items():
        print(f"{id} {revision}")
    print(
        f"{len(added)} data sets pinned in {options.lock}" if added else "every data set was pinned already"
    )
    return 0


def hub_revision(id: str) -> str:
    """The commit that the data set's main branch has now."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        revision = HfApi().dataset_info(id, timeout=20).sha
    except (HfHubHTTPError, OSError) as error:
        raise SettingError(f"{id}: the Hugging Face hub gave no revision ({type(error).__name__})") from error
    if not revision:
        raise SettingError(f"{id}: the Hugging Face hub gave no revision")
    return revision


def write_lock(path: Path, resolve: Callable[[str], str]) -> dict[str, str]:
    """Add what is missing to the lock file; entries that are there stay. Nothing is written when one fails."""
    held = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    today = datetime.date.today().isoformat()
    added = {id: resolve(id) for id in dict.fromkeys(_hub_ids()) if id not in held}
    for id, revision in added.items():
        held[id] = {
            "revision": revision,
            "source": f"main branch on {today}, resolved by flashreinforce-molt pin",
        }
    if added:
        write_atomically(path, json.dumps(dict(sorted(held.items())), indent=2) + "\n")
    return added


def _hub_ids() -> Iterator[str]:
    """Data sets of all recipes and variants that live on the hub and are not pinned in the recipe."""
    for recipe, listed in available_recipes().items():
        for variant in (None, *listed.variants):
            config = resolve_experiment(recipe, variants=[variant] if variant else []).experiment.config
            named = [(config.data.id, config.data.revision)]
            named += [(suite.get("id"), suite.get("revision")) for suite in config.evaluation.suites.values()]
            yield from (id for id, revision in named if id and "/" in id and not revision)
