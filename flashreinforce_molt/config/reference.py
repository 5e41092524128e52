"""The reference page of all settings, made from the docstring lines in the schema.

`python -m flashreinforce_molt.config.reference` writes `docs/settings.md`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from pathlib import Path

from flashreinforce_molt.config import schema
from flashreinforce_molt.config.catalogue import SettingSpec, catalogue, groups
from flashreinforce_molt.config.typed import show

_INTRODUCTION = """# Settings

Every setting of a run, with its default. A recipe or a variant writes it as `{value: ..., source: "..."}` below its
group, the command line as `--set group.name=value`. Values are YAML: `1e-3`, `true`, `null`, `[1, 2]`, `{key: value}`;
text is taken as typed. One key inside a mapping is set by its path, such as
`--set environment.options.dataset=spell_backward`; a later recipe or variant replaces the whole mapping.

This page is generated: `python -m flashreinforce_molt.config.reference`. Limits of single settings stand in the
tables; rules between settings are checked by `flashreinforce_molt/config/validate.py` before anything loads.
"""


@cache
def documentation() -> dict[str, str]:
    """The docstring line of every setting and group by its dotted name; missing ones are absent."""
    classes = {
        node.name: node
        for node in ast.parse(inspect.getsource(schema)).body
        if isinstance(node, ast.ClassDef)
    }
    found: dict[str, str] = {}
    for field, following in _fields(classes["Config"]):
        name, declared = _target(field), ast.unparse(field.annotation)
        if declared not in classes:
            found.update(_line(name, following))
            continue
        found[name] = ast.get_docstring(classes[declared]) or ""
        for inner, below in _fields(classes[declared]):
            found.update(_line(f"{name}.{_target(inner)}", below))
    return found


def _fields(owner: ast.ClassDef) -> list[tuple[ast.AnnAssign, ast.stmt | None]]:
    return [
        (node, following)
        for node, following in zip(owner.body, [*owner.body[1:], None], strict=True)
        if isinstance(node, ast.AnnAssign)
    ]


def _target(field: ast.AnnAssign) -> str:
    return ast.unparse(field.target)


def _line(name: str, node: ast.stmt | None) -> dict[str, str]:
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return {name: inspect.cleandoc(node.value.value)}
    return {}


def settings_page() -> str:
    """The whole page as Markdown."""
    lines = documentation()
    parts = [_INTRODUCTION]
    for group in ("", *groups()):
        heading, intro = (group, lines[group]) if group else ("run", "Settings without a group.")
        specs = [spec for spec in catalogue().values() if spec.name.rpartition(".")[0] == group]
        rows = "\n".join(_row(spec, lines[spec.name]) for spec in specs)
        table = f"| setting | type | default | limits | meaning |\n|---|---|---|---|---|\n{rows}"
        parts.append(f"## {heading}\n\n{intro}\n\n{table}\n")
    return "\n".join(parts)


def _row(spec: SettingSpec, meaning: str) -> str:
    cells = (
        f"`{spec.name}`",
        spec.type_text,
        f"`{show(spec.default)}`",
        spec.limits_text,
        " ".join(meaning.split()),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(arguments: list[str]) -> None:
    """Write the page to the given path, `docs/settings.md` by default."""
    target = Path(arguments[0] if arguments else "docs/settings.md")
    target.write_text(settings_page(), encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
