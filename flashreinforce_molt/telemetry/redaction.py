"""Removing secrets from whatever is about to be written or shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

REDACTED = "[redacted]"

_SHORTEST_LITERAL = 8
"""A secret of the environment that is shorter is not searched for as text: it would hide innocent words."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Parts that make a name secret wherever they stand in it, with any separators.
_SECRET_PARTS = (
    "apikey",
    "secretkey",
    "accesskey",
    "privatekey",
    "password",
    "passwd",
    "passphrase",
    "authtoken",
)
# Words that do so wherever they stand.
_SECRET_WORDS = _words("secret secrets credential credentials authorization")
# Words that do so at the end of a name.
_SECRET_ENDINGS = _words("auth cookie cookies netrc bearer")
# `OWNER_key` is secret for these owners; `sort_key` is not.
_KEY_OWNERS = _words("api access secret private signing encryption ssh account service auth")
# `OWNER_pass` and `OWNER_pwd` are secret for these owners; `forward_pass` is not.
_PASSWORD_OWNERS = _words("db user root admin smtp mysql postgres pg redis ftp proxy")
# `KIND_token` is secret unless the token is a piece of text of this kind.
_TEXT_TOKENS = _words(
    "pad eos bos unk mask cls sep image audio video stop end start special per each top first last next prev "
    "previous new sampled chosen forced decoder prefix suffix middle eot think tool call one single this by to of a "
    "the worst best negative positive policy action max min mean"
)
# `KIND_tokens` is secret only for these kinds.
_OWNED_TOKENS = _words("access api auth bearer refresh session hf hub")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NO_LETTER_OR_DIGIT = re.compile(r"[^a-z0-9]+")

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_SCHEME = r"(?<![A-Za-z0-9+.\-])([A-Za-z][A-Za-z0-9+.\-]{0,30}://)"
_USER_IN_URL = re.compile(_SCHEME + r"([^\s/?#\"'<>]{1,512})@")
# A password with a raw slash in it; what looks like a port is none.
_SLASH_IN_PASSWORD = re.compile(
    _SCHEME + r"([^\s/?#@:\"'<>]{0,256}:(?!\d{1,5}(?:[/?#\s]|$))[^\s@\"'<>]{1,512})@"
)
_BEARER = re.compile(r"(\bbearer\s+)(?!tokens?\b)([A-Za-z0-9._~+/=\-]{6,})", re.IGNORECASE)
_KNOWN_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_(?=[a-z]*[0-9A-Z])[A-Za-z0-9]{6,}|hf_[a-z]{16,}"
    r"|sk-[A-Za-z0-9_\-]{8,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_\-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9\-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_\-]{30,}"
    r"|nvapi-[A-Za-z0-9_\-]{16,}|pypi-[A-Za-z0-9_\-]{32,}|npm_[A-Za-z0-9]{30,}"
    r"|eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"
    r")"
)
_SLACK_HOOK = re.compile(r"(hooks\.slack\.com/services/)[A-Za-z0-9/_\-]+")
# A name starts where no name goes on, so that the search stays linear in the text.
_ASSIGNMENT = re.compile(r"(?<![\w.\-])([\w.\-]+)([\"']?\s{0,3}[=:]\s{0,3}|\s{1,3}(?=[^\s\-]))")
_ASSIGNED = re.compile(
    r"(?:(?:Bearer|Basic|Token|Digest)\s+)?(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[^\s&\"']+)",
    re.IGNORECASE,
)
_POSITION = re.compile(r"[0-9.]+[,;)\]]?")


def is_secret_name(name: str) -> bool:
    """Whether a setting, flag or environment variable of this name holds a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "wandb.api_key", "max_tokens", "tokenizer", "eos_token")]
    [True, True, False, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if not words:
        return False
    squeezed = _NO_LETTER_OR_DIGIT.sub("", name.lower())
    if any(part in squeezed for part in _SECRET_PARTS) or not _SECRET_WORDS.isdisjoint(words):
        return True
    if any(owner in _KEY_OWNERS and key in ("key", "keys") for owner, key in pairwise(words)):
        return True
    before, last = (words[-2] if len(words) > 1 else ""), words[-1]
    if last == "token":
        return before not in _TEXT_TOKENS
    if last == "tokens":
        return before in _OWNED_TOKENS
    if last in ("pass", "pwd"):
        return before in _PASSWORD_OWNERS
    return last in _SECRET_ENDINGS


def redact(value: Any, *, environ: Mapping[str, str] | None = None) -> Any:
    """A copy of `value` without secrets: strings, and mappings and sequences of them; other things as they are.

    Removed are the values of secret names (mapping keys, `NAME=value`, `--flag value`), passwords in URLs, well-known
    shapes of access keys, and the text of every secret that the environment (`os.environ`) now holds.
    """
    variables = os.environ if environ is None else environ
    held = {
        text for name, text in variables.items() if len(text) >= _SHORTEST_LITERAL and is_secret_name(name)
    }
    return _redact(value, sorted(held, key=len, reverse=True))


def _redact(value: Any, held: Sequence[str]) -> Any:
    if isinstance(value, str):
        return _redact_text(value, held)
    if isinstance(value, bytes):
        return _redact_text(value.decode("utf-8", "replace"), held).encode()
    if isinstance(value, Mapping):
        return {
            _redact(key, held): _removed(item, str(key), held)
            if is_secret_name(str(key))
            else _redact(item, held)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return _redact_sequence(value, held)
    if isinstance(value, tuple):
        return tuple(_redact_sequence(value, held))
    if isinstance(value, (set, frozenset)):
        return type(value)(_redact(item, held) for item in value)
    if isinstance(value, os.PathLike):
        return _redact_text(str(value), held)
    return value


def _redact_sequence(items: Sequence[Any], held: Sequence[str]) -> list[Any]:
    """A sequence may be a command line: a secret flag's value is the next element, or all that follows its `=`."""
    result: list[Any] = []
    remove_next = False
    for item in items:
        is_flag = isinstance(item, str) and item.startswith("-") and len(item) > 1
        name, equals, _ = item.partition("=") if isinstance(item, str) else ("", "", "")
        if remove_next and not is_flag:
            result.append(REDACTED)
        elif equals and not any(c.isspace() for c in name) and is_secret_name(name):
            result.append(f"{name}={REDACTED}")
        else:
            result.append(_redact(item, held))
        remove_next = is_flag and not equals and " " not in item and is_secret_name(item)
    return result


def _removed(value: Any, name: str, held: Sequence[str]) -> Any:
    """What stands for the value of a secret name: every text in it goes, 'not set' stays readable."""
    if value is None or isinstance(value, bool) or value == "":
        return value
    if isinstance(value, (int, float)) and name.lower().endswith("token"):
        return value  # a number of a token is a count or a position
    if isinstance(value, Mapping):
        is_setting = "value" in value and set(value) <= {"value", "source", "layer"}
        return {
            key: _redact(item, held) if is_setting and key != "value" else _removed(item, name, held)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_removed(item, name, held) for item in value]
    return REDACTED


def _redact_text(text: str, held: Sequence[str]) -> str:
    for secret in held:
        text = text.replace(secret, REDACTED)
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _USER_IN_URL.sub(_without_user, text)
    text = _SLASH_IN_PASSWORD.sub(_without_user, text)
    text = _SLACK_HOOK.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _KNOWN_SHAPES.sub(REDACTED, text)
    return _redact_assignments(text)


def _without_user(match: re.Match[str]) -> str:
    scheme, user = match.group(1), match.group(2)
    if ":" not in user and scheme.lower().startswith(("ssh", "git+ssh")):
        return match.group(0)  # the login name of ssh, such as git@
    return f"{scheme}{REDACTED}@"


def _redact_assignments(text: str) -> str:
    """Remove the value after every `name=`, `name:` and `--name ` whose name is secret."""
    pieces: list[str] = []
    done = position = 0
    while match := _ASSIGNMENT.search(text, position):
        position = match.end(1)
        name, separator = match.group(1), match.group(2)
        if (separator.isspace() and not name.startswith("-")) or not is_secret_name(name):
            continue
        value = _ASSIGNED.match(text, match.end())
        if value is None or value.group(0).startswith(REDACTED):
            continue
        if name.lower().endswith("token") and _POSITION.fullmatch(value.group(0)):
            continue  # "token: 12" is a position
        if value.group(0).lower().rstrip(",;)]}") in ("none", "null", "true", "false", ""):
            continue
        pieces += [text[done : match.end()], REDACTED]
        done = position = value.end()
    pieces.append(text[done:])
    return "".join(pieces)
