"""Secrets go, look-alikes stay."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flashreinforce_molt.telemetry.redaction import REDACTED, is_secret_name, redact

SECRET = "s3cr3tValue"


def clean(value: Any) -> Any:
    return redact(value, environ={})


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "WANDB_API_KEY",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "MY_SECRET",
        "CLIENT_SECRET_2",
        "password",
        "db.password",
        "DB_PASS",
        "passwd",
        "--token",
        "--api-key",
        "apiKey",
        "APIkey",
        "accessToken",
        "user_token",
        "token",
        "auth_tokens",
        "Authorization",
        "http_auth",
        "private_key",
        "credentials",
        "Cookie",
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)
    assert clean({name: SECRET}) == {name: REDACTED}


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "max_new_tokens",
        "rollout.max_context_tokens",
        "train.logprob_chunk_tokens",
        "tokenizer",
        "tokenizer_class",
        "token_mean",
        "token-mean",
        "negative_token_fraction",
        "top_token_share",
        "rollout_tokens_per_s",
        "tokens",
        "tokens_per_second",
        "eos_token",
        "pad_token",
        "pad_token_id",
        "stop_token",
        "author",
        "authors",
        "sort_key",
        "key",
        "monkey",
        "keyboard",
        "forward_pass",
        "passes",
        "bypass",
        "secretary",
        "PWD",
        "",
    ],
)
def test_look_alikes_stay_readable(name: str) -> None:
    assert not is_secret_name(name)
    assert clean({name: "plain text 12"}) == {name: "plain text 12"}
    assert clean(f"--{name}=plain") == f"--{name}=plain"
    assert clean(["--" + name, "plain"]) == ["--" + name, "plain"]


@pytest.mark.parametrize(
    "text",
    [
        f"HF_TOKEN={SECRET} python train.py",
        f"export WANDB_API_KEY={SECRET}; python train.py",
        f"train --token={SECRET} --lr 1",
        f"train --token {SECRET} --lr 1",
        f"train --hf-token '{SECRET} with spaces' --lr 1",
        f"--set logging.api_key={SECRET}",
        f"https://user:{SECRET}@host/path",
        f"https://{SECRET}@github.com/a/b.git",
        f"postgres://u:p@{SECRET}@db:5432/x",
        f"postgres://u:p/{SECRET}@db:5432/x",
        f"git+https://user:{SECRET}@host/a.git@main",
        f"https://host/v1?api_key={SECRET}&model=x",
        f"https://host/v1?model=x&token={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}",
        f"authorization: bearer {SECRET}",
        f"headers={{'Authorization': 'Bearer {SECRET}'}}",
        f'{{"api_key": "{SECRET}", "max_tokens": 5}}',
        f"password: {SECRET}",
        f'password="quo\\"ted{SECRET}"',
        f"password={SECRET},{SECRET};{SECRET}",
        f"HTTPError: 401 for url https://host/api?access_token={SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
        f"https://hooks.slack.com/services/T0/{SECRET}",
    ],
)
def test_secrets_in_text_go(text: str) -> None:
    assert SECRET not in clean(text)
    assert REDACTED in clean(text)


@pytest.mark.parametrize(
    "secret",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
        "hf_abcdefghijklmnopqrst",
        "hf_abc123",
        "sk-abcdefgh12345678",
        "sk-proj-abc_def-123456",
        "ghp_0123456789abcdefghij",
        "github_pat_11AAAAAAA0123456789",
        "glpat-abcdefghij0123456789",
        "xoxb-1234567890-abcdef",
        "AKIAABCDEFGHIJKLMNOP",
        "nvapi-abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def_123",
    ],
)
def test_well_known_shapes_go_wherever_they_stand(secret: str) -> None:
    for text in (secret, f"error near '{secret}'.", f"/tmp/{secret}/x", f"a,{secret},b", f"note_{secret}"):
        assert secret not in clean(text), text
    assert clean({"note": [secret]}) == {"note": [REDACTED]}


@pytest.mark.parametrize(
    "text",
    [
        "hf_hub",
        "hf_overrides",
        "hf_checkpoint",
        "sk-learn",
        "risk-management-of-things",
        "task-level-abcdefgh",
        "https://huggingface.co/Qwen/Qwen2.5-7B-Instruct",
        "http://proxy:3128/path/a@b",
        "https://host:8080?mail=a@b.org",
        "git@github.com:a/b.git",
        "ssh://git@github.com/a/b.git",
        "mail someone@example.org",
        "token: 12 of trajectory 5",
        "ratio overflow at token 7: exp(91)",
        "a bearer token is needed",
        "token=None",
        "2f1a9c0d5e6b7a8f9e0d1c2b3a4f5e6d7c8b9a0f",
        "python scripts/train_molt.py --recipe quickstart --set rollout.max_new_tokens=64 --output runs/a",
        "objective.aggregation=token-mean",
        "password must be set",
        "--set model.id=a --tokenizer fast",
    ],
)
def test_harmless_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_the_value_after_a_secret_flag_goes() -> None:
    command = ["train", "--token", SECRET, "--lr", "1", f"--password={SECRET},more", "--api-key", "--dry-run"]
    expected = ["train", "--token", REDACTED, "--lr", "1", f"--password={REDACTED}", "--api-key", "--dry-run"]
    assert clean(command) == expected
    assert clean(["--set", f"wandb.api_key={SECRET};{SECRET}"]) == ["--set", f"wandb.api_key={REDACTED}"]


def test_what_the_environment_holds_as_a_secret_goes_from_any_text() -> None:
    environ = {"HF_TOKEN": "plainwordsecret", "HOME": "/home/someone", "API_KEY": "short"}
    text = "Cannot reach host with plainwordsecret, from /home/someone, a short text"
    assert (
        redact(text, environ=environ)
        == f"Cannot reach host with {REDACTED}, from /home/someone, a short text"
    )


def test_the_process_environment_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "valueofthekey")
    assert redact(["x valueofthekey y"]) == [f"x {REDACTED} y"]


def test_nested_values_of_a_secret_name_go_but_unset_stays_visible() -> None:
    value = {"credentials": {"user": "u", "list": ["a", 5]}, "api_key": None, "password": "", "token": 7}
    expected = {
        "credentials": {"user": REDACTED, "list": [REDACTED, REDACTED]},
        "api_key": None,
        "password": "",
        "token": 7,
    }
    assert clean(value) == expected


def test_a_secret_setting_keeps_its_source() -> None:
    settings = {"logging.api_key": {"value": SECRET, "source": "--set", "layer": "--set"}}
    assert clean(settings) == {"logging.api_key": {"value": REDACTED, "source": "--set", "layer": "--set"}}


def test_other_types_pass_and_paths_become_text() -> None:
    assert clean({"a": 1, "b": None, "c": 0.5, "d": True, "e": (1, "x"), "f": Path("/a/b")}) == {
        "a": 1,
        "b": None,
        "c": 0.5,
        "d": True,
        "e": (1, "x"),
        "f": "/a/b",
    }


def test_redacting_twice_changes_nothing() -> None:
    once = clean({"command": f"train --token={SECRET} https://u:{SECRET}@h/x", "api_key": SECRET})
    assert clean(once) == once


@pytest.mark.parametrize(
    "piece", ["a", "a.", "://", ":", "-", "token=", "hf_", "eyJ", "'", "https://a:", "@", " ="]
)
def test_long_hostile_text_takes_linear_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    begin = time.perf_counter()
    clean(text)
    assert time.perf_counter() - begin < 2.0
