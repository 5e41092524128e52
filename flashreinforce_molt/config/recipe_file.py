"""What a recipe file may say, and the `key=value` of a command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flashreinforce_molt.config.catalogue import SettingSpec, catalogue, groups, nearest
from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.config.experiment import ENGINES, Check
from flashreinforce_molt.config.strict_yaml import MAX_DEPTH, NAME, Items, Scalar, Table, Tree, parse
from flashreinforce_molt.config.typed import MAX_TEXT, checked_text, free_value, show, show_tree, typed_value

MAX_FILE_LENGTH = 256 * 1024
_RECIPE_KEYS = ("summary", "extends", "engines", "requires", "settings", "variants")
_VARIANT_KEYS = ("summary", "with", "settings")
_LEAF_KEYS = ("value", "source")


@dataclass(frozen=True)
class Assignment:
    """One setting that a layer writes; `inner` is the path inside a free-form mapping, empty for the whole value."""

    name: str
    value: Any
    source: str
    inner: tuple[str, ...] = ()


@dataclass(frozen=True)
class VariantBlock:
    """A named set of changes to a recipe."""

    summary: str
    assignments: tuple[Assignment, ...]
    beside: str | None = None
    """Variant that it was published with."""


@dataclass(frozen=True)
class RecipeFile:
    """A recipe as written; `problems` are its mistakes, and a setting with a mistake has no assignment."""

    name: str
    summary: str
    extends: str | None
    engines: tuple[str, ...]
    requires: tuple[str, ...]
    assignments: tuple[Assignment, ...]
    variants: dict[str, VariantBlock]
    problems: tuple[Check, ...]


def unknown(what: str, word: str, names: tuple[str, ...], origin: str = "") -> str:
    """The message for a name that does not exist; it names the nearest three that do."""
    said = f"unknown {what} {show(word)}" + (f" ({origin})" if origin else "")
    near = nearest(word, names)
    return f"{said}; nearest: {', '.join(near)}" if near else said


def problem(message: str, *settings: str) -> Check:
    """A mistake in a single setting or in a recipe's form."""
    return Check("setting", "error", message, settings)


def read_recipe(name: str, text: str, where: str) -> RecipeFile:
    """The recipe in `text`. Invalid YAML raises; every other mistake is collected."""
    tree = parse(text, where, max_length=MAX_FILE_LENGTH)
    if not isinstance(tree, Table):
        raise SettingError(f"{where}: a recipe is a mapping with the keys {', '.join(_RECIPE_KEYS)}")
    return _Reader(where).recipe(name, tree)


class _Reader:
    """Turns the tree of one file into a `RecipeFile` and collects the mistakes on the way."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[Check] = []

    def recipe(self, name: str, tree: Table) -> RecipeFile:
        self._known_keys(tree, _RECIPE_KEYS, "a recipe")
        engines = self._texts(tree, "engines")
        for engine in engines:
            if engine not in ENGINES:
                self._mistake(tree.line, unknown("engine", engine, ENGINES))
        variants = {
            variant: self._variant(variant, block)
            for variant, block in self._table(tree.entries.get("variants"), "variants")
        }
        return RecipeFile(
            name=name,
            summary=self._text(tree, "summary", "the recipe"),
            extends=self._text(tree, "extends", "the recipe") if "extends" in tree.entries else None,
            engines=tuple(engine for engine in engines if engine in ENGINES),
            requires=self._texts(tree, "requires"),
            assignments=self._settings(tree),
            variants=variants,
            problems=tuple(self.problems),
        )

    def _variant(self, name: str, block: Tree) -> VariantBlock:
        if not NAME.fullmatch(name):
            self._mistake(
                block.line, f"variant {show(name)}: a name is lower-case letters, digits and underscores"
            )
        table = block if isinstance(block, Table) else Table({}, block.line)
        if table is not block:
            self._mistake(
                block.line, f"variant {show(name)} must be a mapping with the keys {', '.join(_VARIANT_KEYS)}"
            )
        self._known_keys(table, _VARIANT_KEYS, f"variant {show(name)}")
        beside = self._text(table, "with", f"variant {show(name)}") if "with" in table.entries else None
        summary = self._text(table, "summary", f"variant {show(name)}")
        return VariantBlock(summary, self._settings(table), beside)

    def _settings(self, owner: Table) -> tuple[Assignment, ...]:
        found: list[Assignment] = []
        self._walk(self._table(owner.entries.get("settings"), "settings"), "", found)
        return tuple(found)

    def _walk(self, table: Table, prefix: str, found: list[Assignment]) -> None:
        for key, tree in table:
            name = prefix + key
            if name in catalogue():
                self._leaf(name, tree, found)
            elif name in groups():
                self._walk(self._table(tree, name), f"{name}.", found)
            else:
                self._mistake(tree.line, unknown("setting", name, (*catalogue(),)), name)

    def _leaf(self, name: str, tree: Tree, found: list[Assignment]) -> None:
        if not isinstance(tree, Table) or not set(tree.entries) & set(_LEAF_KEYS):
            key = name.rpartition(".")[2]
            hint = f'write {key}: {{value: {show_tree(tree)}, source: "where it comes from"}}'
            self._mistake(tree.line, f"{name} has no source; {hint}", name)
            return
        self._known_keys(tree, _LEAF_KEYS, name, name)
        source = tree.entries.get("source")
        if source is None or not _is_text(source):
            self._mistake(tree.line, f"{name} has no source; say in words where the value comes from", name)
        if "value" not in tree.entries:
            self._mistake(tree.line, f"{name} has no value", name)
            return
        try:
            value = typed_value(catalogue()[name], tree.entries["value"], f"{self.where}, line {tree.line}")
        except SettingError as error:
            self.problems.extend(problem(message, name) for message in error.problems)
            return
        if isinstance(source, Scalar):
            found.append(Assignment(name, value, source.text))

    def _known_keys(self, table: Table, known: tuple[str, ...], owner: str, *settings: str) -> None:
        for key, tree in table:
            if key not in known:
                self._mistake(
                    tree.line, f"{owner}: unknown key {show(key)}; known: {', '.join(known)}", *settings
                )

    def _table(self, tree: Tree | None, name: str) -> Table:
        if isinstance(tree, Table):
            return tree
        if tree is not None and not (isinstance(tree, Scalar) and tree.value is None):
            self._mistake(tree.line, f"{name} must be a mapping")
        return Table({}, 0)

    def _text(self, table: Table, key: str, owner: str) -> str:
        tree = table.entries.get(key)
        if isinstance(tree, Scalar) and _is_text(tree):
            return tree.text
        self._mistake(
            table.line,
            f"{owner} needs {key}: one sentence of text" if key == "summary" else f"{key} must be text",
        )
        return ""

    def _texts(self, table: Table, key: str) -> tuple[str, ...]:
        tree = table.entries.get(key)
        if tree is None:
            return ()
        if not isinstance(tree, Items) or not all(_is_text(item) for item in tree.entries):
            self._mistake(tree.line, f"{key} must be a list of texts")
            return ()
        return tuple(item.text for item in tree.entries if isinstance(item, Scalar))

    def _mistake(self, line: int, message: str, *settings: str) -> None:
        self.problems.append(problem(f"{self.where}, line {line}: {message}", *settings))


def _is_text(tree: Tree) -> bool:
    return (
        isinstance(tree, Scalar)
        and isinstance(tree.value, str)
        and tree.text.strip() != ""
        and all(character.isprintable() or character == "\n" for character in tree.text)
    )


def parse_override(text: Any) -> Assignment:
    """The assignment that `--set text` makes."""
    key, equals, raw = text.partition("=") if isinstance(text, str) else ("", "", "")
    key = key.strip()
    if not equals or not key:
        raise SettingError(
            f"--set {show(str(text))} is malformed; write --set key=value, for example --set optim.lr=1e-6"
        )
    if key in groups():
        members = [name for name in catalogue() if name.startswith(f"{key}.")]
        raise SettingError(f"--set {show(key)}: this is a group of settings; set one of {', '.join(members)}")
    spec, inner = _target(key)
    shown = f"--set {key}"
    if spec.kind is str and raw[:1] not in ('"', "'", "[", "{", "!"):
        tree: Tree = Scalar(raw, False, 1)
    else:
        tree = parse(raw, shown, max_length=MAX_TEXT)
    if inner:
        return Assignment(
            spec.name, free_value(tree, f"{key}={show_tree(tree)} (from --set)"), "command line", inner
        )
    return Assignment(spec.name, typed_value(spec, tree, "from --set"), "command line")


def _target(key: str) -> tuple[SettingSpec, tuple[str, ...]]:
    if key in catalogue():
        return catalogue()[key], ()
    for spec in catalogue().values():
        if spec.free_form and key.startswith(f"{spec.name}."):
            inner = tuple(key[len(spec.name) + 1 :].split("."))
            if not all(inner):
                raise SettingError(f"--set {show(key)}: a key inside {spec.name} is empty")
            if len(inner) > MAX_DEPTH:
                raise SettingError(f"--set {show(key)}: keys are nested more than {MAX_DEPTH} deep")
            for part in inner:
                checked_text(part, f"--set {show(key)}")
            return spec, inner
    raise SettingError(unknown("setting", key, (*catalogue(),), "from --set"))
