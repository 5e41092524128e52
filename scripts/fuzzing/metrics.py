"""Metric files as `report` reads them: cut, foreign, of wrong types; and whole pages of damaged run directories."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from flashreinforce_molt.telemetry import METRICS, read_metrics, write_report
from fuzzing.case import ANSWER, REFUSED, STRANGE_VALUES, attempt, demand, mangled

SECRET = "hf_AbCdEfGh0123456789"
TAG = "<script>alert(1)</script>"
BAD_LINES = (
    "",
    "{",
    "[]",
    "7",
    "null",
    '{"update": NaN}',
    "[" * 50_000,
    '{"a":' * 50_000,
    '"' + "a" * 5000,
    "\x00",
)
NO_NUMBERS = ("7", [], {}, True, 10**400)


def case(rng: Random, folder: Path) -> str:
    """One file, or in a case of eighty a page."""
    lines = [_line(update, rng) for update in range(1, rng.randint(3, 6))]
    if rng.random() < 1 / 80:
        return _page(lines, rng, folder)
    data, must = _damaged(lines, rng)
    path = folder / "metrics.jsonl"
    path.write_bytes(data)
    outcome, record = attempt(lambda: read_metrics(path), (ValueError,), must=must, names=str(path))
    if outcome == ANSWER and must == ANSWER:
        demand(list(record.lines) == lines[: len(record.lines)], f"read {record.lines}")
        demand(
            len(record.lines) == len(lines) or record.cut_line is not None, "a line is lost without a word"
        )
    return outcome


def _line(update: int, rng: Random) -> dict[str, Any]:
    line = {metric.name: rng.choice([None, 0, 1.5, -2, 1e300, 1e-300, rng.random()]) for metric in METRICS}
    return line | {"update": update, "tool_calls_mean": rng.random()}


def _damaged(lines: list[dict[str, Any]], rng: Random) -> tuple[bytes, str | None]:
    texts = [json.dumps(line) for line in lines]
    kind, at = rng.randrange(8), rng.randrange(len(lines) - 1)
    if kind == 0:
        return ("\n".join(texts) + rng.choice(["", "\n"])).encode(), ANSWER
    if kind == 1:
        whole = ("\n".join(texts) + "\n").encode()
        return whole[: -rng.randint(1, len(texts[-1]))], ANSWER
    if kind == 2:
        texts[at] = rng.choice(BAD_LINES)
    elif kind == 3:
        name = rng.choice([metric.name for metric in METRICS if metric.name != "update"])
        texts[at] = json.dumps(lines[at] | {name: rng.choice([*NO_NUMBERS, float("nan"), float("-inf")])})
    elif kind == 4:
        texts[at] = json.dumps(
            lines[at] | {"update": rng.choice([None, 0, -1, 1.5, "1", True, 2**60, at + 3])}
        )
    elif kind == 5:
        texts[at] = json.dumps(lines[at] | {str(rng.choice(STRANGE_VALUES)): rng.choice(STRANGE_VALUES)})
        return "\n".join(texts).encode("utf-8", "replace"), None
    elif kind == 6:
        texts[at] = mangled(texts[at], rng)
        return "\n".join(texts).encode("utf-8", "surrogatepass"), None
    else:
        return "\n".join(texts).encode().replace(b"update", rng.choice([b"upd\xffate", b"Update"])), REFUSED
    return ("\n".join(texts) + "\n").encode(), REFUSED


def _page(lines: list[dict[str, Any]], rng: Random, folder: Path) -> str:
    """A report of sound metrics beside anything else; no tag, no secret and no endless page may come of it."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    strange = lambda: rng.choice([TAG, SECRET, *STRANGE_VALUES])  # noqa: E731
    for line in lines:
        line[rng.choice(["turns_mean", "x" * 300, TAG])] = strange()
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    evaluation = {
        "update": 0,
        "sampled_accuracy": rng.random(),
        "tasks": rng.choice([0, 8]),
        "samples": 1,
        "wall_s": 3,
    }
    evaluation |= {
        "examples": rng.choice(
            [strange(), [strange()], [{"prompt": strange(), "response": TAG, "score": strange()}]]
        )
    }
    names = ("recipe", "variants", "engine", "git", "versions", "resumes", "command", "settings", "started")
    provenance = {name: rng.choice([strange(), [strange()], {str(strange()): strange()}]) for name in names}
    provenance["settings"] = {
        str(strange()): {"value": strange(), "source": strange()},
        "hub_token": {"value": SECRET},
    }
    config = rng.choice(
        ["a: &a [*a]", "!!python/object/apply:os.system [x]", "a: 2001-99-99", "{", f"model: {TAG}", "7"]
    )
    for name, text in (
        ("evaluation.jsonl", json.dumps(evaluation) + "\n"),
        ("provenance.json", json.dumps(provenance)),
        ("config.yaml", config),
    ):
        text = mangled(text, rng) if rng.random() < 0.3 else text
        (run / name).write_text(text, "utf-8", "replace")
    outcome, page = attempt(lambda: write_report([run], folder / "page.html"), (ValueError,), must=ANSWER)
    text = page.read_text("utf-8")
    demand(TAG not in text, "a tag of a file is alive in the page")
    demand(SECRET not in text, "a secret is in the page")
    demand(len(text) < 2_000_000, f"a page of {len(text)} characters")
    return outcome
