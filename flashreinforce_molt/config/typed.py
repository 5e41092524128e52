"""From the text of a value to the type that the schema asks for, within the limits that it sets."""

from __future__ import annotations

import json
from typing import Any

from flashreinforce_molt.config.catalogue import SettingSpec
from flashreinforce_molt.config.errors import SettingError
from flashreinforce_molt.config.strict_yaml import Items, Scalar, Table, Tree

MAX_TEXT = 10_000
_MAX_WHOLE = 2**63 - 1
_SHOWN = 80


def show(value: Any) -> str:
    """A value as a person would write it after `--set key=`, shortened."""
    if isinstance(value, str):
        plain = value != "" and value.isprintable() and value == value.strip() and " " not in value
        text = value if plain else json.dumps(value)
    elif isinstance(value, float):
        text = repr(value)
    else:
        text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def show_tree(tree: Tree) -> str:
    """What was typed, for a value that could not be converted."""
    if isinstance(tree, Scalar):
        return show(tree.text) if not tree.quoted else json.dumps(tree.text)[:_SHOWN]
    return "{...}" if isinstance(tree, Table) else "[...]"


def typed_value(spec: SettingSpec, tree: Tree, origin: str) -> Any:
    """The value of `tree` as `spec` wants it; `origin` says in the error where the value was written."""
    said = f"{spec.name}={show_tree(tree)} ({origin})"
    value = _converted(spec, tree, said)
    if value is None:
        return None
    if spec.choices is not None and value not in spec.choices:
        raise SettingError(f"{said} is not {spec.limits_text}" + _hint(spec))
    if spec.kind in (int, float) and not _within(spec, value):
        raise SettingError(f"{said} must be {spec.limits_text}" + _hint(spec))
    return value


def _converted(spec: SettingSpec, tree: Tree, said: str) -> Any:
    if isinstance(tree, Scalar) and tree.value is None:
        if spec.optional:
            return None
        if spec.kind is str and tree.text:
            raise SettingError(
                f'{said} must be text; to mean the word itself, quote it: {spec.name}="{tree.text}"'
            )
        raise SettingError(f"{said} needs a value: {_wanted(spec)}")
    if spec.free_form:
        if not isinstance(tree, Table):
            example = f"{spec.name}={{key: value}}"
            raise SettingError(f"{said} must be a mapping, such as {example}; one key: {spec.name}.key=value")
        return free_value(tree, said)
    if not isinstance(tree, Scalar):
        quote = ", quoted if it begins with a bracket" if spec.kind is str else ""
        raise SettingError(f"{said} must be {_wanted(spec)}{quote}")
    if spec.kind is str:
        return checked_text(tree.text, said)
    if spec.kind is bool:
        if not isinstance(tree.value, bool):
            raise SettingError(f"{said} must be true or false")
        return tree.value
    return _number(spec, tree, said)


def _number(spec: SettingSpec, tree: Scalar, said: str) -> int | float:
    if tree.not_finite:
        raise SettingError(f"{said} must be a finite number" + _hint(spec))
    value = tree.value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        quoted = "; write it without quotes" if tree.quoted else ""
        raise SettingError(f"{said} must be {_wanted(spec)}{quoted}")
    if spec.kind is float:
        return float(value)
    if isinstance(value, float):
        whole = f"; write {int(value)}" if value.is_integer() and abs(value) <= _MAX_WHOLE else ""
        raise SettingError(f"{said} must be a whole number{whole}")
    if abs(value) > _MAX_WHOLE:
        raise SettingError(f"{said} is beyond 64 bits")
    return value


def _within(spec: SettingSpec, value: int | float) -> bool:
    return (
        (spec.minimum is None or value >= spec.minimum)
        and (spec.above is None or value > spec.above)
        and (spec.maximum is None or value <= spec.maximum)
    )


def _wanted(spec: SettingSpec) -> str:
    article = "" if spec.kind is bool or spec.kind is str else "a "
    limits = f", {spec.limits_text}" if spec.limits_text else ""
    return f"{article}{spec.type_text}{limits}"


def _hint(spec: SettingSpec) -> str:
    return f"; {spec.hint}" if spec.hint else ""


def free_value(tree: Tree, said: str) -> Any:
    """The plain Python value of a free-form tree; it must be finite and free of interpolations."""
    if isinstance(tree, Table):
        return {checked_text(key, said): free_value(value, said) for key, value in tree}
    if isinstance(tree, Items):
        return [free_value(item, said) for item in tree.entries]
    if tree.not_finite:
        raise SettingError(f"{said} holds {tree.text}; numbers must be finite (quote it if text is meant)")
    value = tree.value
    if isinstance(value, int) and abs(value) > _MAX_WHOLE:
        raise SettingError(f"{said} holds a number beyond 64 bits")
    return checked_text(value, said) if isinstance(value, str) else value


def checked_text(text: str, said: str) -> str:
    """`text`, unless it is absurdly long, unprintable, or would make OmegaConf look something up."""
    if len(text) > MAX_TEXT:
        raise SettingError(f"{said} has {len(text):,} characters; at most {MAX_TEXT:,} are allowed")
    if "${" in text or text == "???":
        raise SettingError(
            f"{said} is an OmegaConf interpolation, which could copy a secret of the environment into the run's files; "
            "write the value itself"
        )
    odd = next(
        (character for character in text if not character.isprintable() and character not in "\n\t"), None
    )
    if odd is not None:
        raise SettingError(f"{said} contains the unprintable character #x{ord(odd):04x}")
    return text
