"""Describe the command line of the installed Molt in `flashreinforce_molt/molt/interface.json`.

Run it where molt-rl is installed: `python scripts/describe_molt.py` writes the file, `--check` compares and exits 1
when they differ. Nothing of Molt is executed besides building its parser; rules are read from the source.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from flashreinforce_molt.molt.cli_block import parse_molt_command  # noqa: E402

TARGET = ROOT / "flashreinforce_molt" / "molt" / "interface.json"
_PLACES = (
    ("cli/train_rl_ray.py", None),
    ("models/loss.py", "PolicyLoss.__init__"),
    ("trainer/fsdp/strategy.py", "FsdpStrategy.setup_distributed"),
    ("trainer/rl_trainer.py", "RLTrainer.__init__"),
)
"""Where Molt checks its flags: the main block, and three constructors that run after the models are placed."""

_SMALLEST = (
    "--actor.model_name_or_path m --train.agent_path a.py --vllm.num_engines 1 --actor.num_gpus_per_node 1"
)


def describe() -> dict[str, Any]:
    """Options and rules of the installed Molt."""
    captured: list[argparse.ArgumentParser] = []
    parse_molt_command(_SMALLEST.split(), extend=captured.append)
    return {
        "molt": metadata.version("molt-rl"),
        "options": {name: option for action in captured[0]._actions for name, option in _options(action)},
        "rules": [rule for path, owner in _PLACES for rule in _rules(path, owner)],
    }


def _options(action: argparse.Action) -> Iterator[tuple[str, dict[str, Any]]]:
    pair = isinstance(action, argparse.BooleanOptionalAction)
    for text in action.option_strings:
        name = text.removeprefix("--")
        if name in ("-h", "help") or (pair and name.startswith("no-")):
            continue
        kind = "pair" if pair else "switch" if action.nargs == 0 else "value"
        option: dict[str, Any] = {"kind": kind, "default": _plain(action.default)}
        if kind == "value":
            option["type"] = getattr(action.type, "__name__", "str")
        if action.nargs not in (None, 0):
            option["nargs"] = action.nargs
        if action.choices is not None:
            option["choices"] = list(action.choices)
        if action.dest != name:
            option["dest"] = action.dest
        yield name, option


def _plain(default: Any) -> Any:
    """A default for JSON; infinity becomes the text that the parser reads, a time stamp is marked as such."""
    if isinstance(default, float) and default == float("inf"):
        return "inf"
    if isinstance(default, str) and default.startswith("rl_"):
        return "rl_TIME"
    return list(default) if isinstance(default, tuple) else default


def _rules(path: str, owner: str | None) -> Iterator[dict[str, str]]:
    spec = importlib.util.find_spec("molt")
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(next(iter(spec.submodule_search_locations))) / path
    body = _body(ast.parse(source.read_text("utf-8")), owner)
    for kind, when, what in _statements(body, []):
        yield {"file": path, "kind": kind, "when": " and ".join(when) or "always", "what": what}


def _body(tree: ast.Module, owner: str | None) -> list[ast.stmt]:
    if owner is None:
        last = tree.body[-1]
        assert isinstance(last, ast.If)
        return last.body
    place: Any = tree
    for name in owner.split("."):
        place = next(node for node in place.body if getattr(node, "name", None) == name)
    return place.body


def _statements(body: list[ast.stmt], when: list[str]) -> Iterator[tuple[str, list[str], str]]:
    for node in body:
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            yield from _statements(node.body, [*when, f"({test})"])
            yield from _statements(node.orelse, [*when, f"(not ({test}))"])
        elif isinstance(node, ast.Try):
            yield from _statements([*node.body, *[x for h in node.handlers for x in h.body]], when)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield "raise", when, ast.unparse(node.exc)
        elif isinstance(node, ast.Assert):
            yield "assert", when, ast.unparse(node.test)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("args."):
            yield "set", when, ast.unparse(node)


def _one_line_each(description: dict[str, Any]) -> str:
    """JSON with one option or rule in a line, so that a difference reads well."""

    def dump(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    options = ",\n".join(f"  {dump(name)}: {dump(option)}" for name, option in description["options"].items())
    rules = ",\n".join(f"  {dump(rule)}" for rule in description["rules"])
    version = dump(description["molt"])
    return f'{{\n "molt": {version},\n "options": {{\n{options}\n }},\n "rules": [\n{rules}\n ]\n}}\n'


def main(arguments: list[str]) -> int:
    """Write the description, or compare it with `--check`."""
    text = _one_line_each(describe())
    if "--check" not in arguments:
        TARGET.write_text(text, encoding="utf-8")
        print(f"wrote {TARGET.relative_to(ROOT)}")
        return 0
    same = TARGET.read_text("utf-8") == text
    print("the description is current" if same else "the installed Molt differs from the description")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
