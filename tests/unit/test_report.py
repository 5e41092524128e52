"""The report page: complete, self-contained, inert, and honest about what is missing."""

from __future__ import annotations

import argparse
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from telemetry_example import example_evaluation, example_metrics, lines_of, write_example_run

from flashreinforce_molt.telemetry import METRICS, report_command, write_report

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>'&amp;\u202e"


class Page(html.parser.HTMLParser):
    """The elements and the visible text of a page."""

    VOID = ("meta", "br", "hr", "link", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        (self.scripts if inside == "script" else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(*runs: Path, output: Path) -> Page:
    return Page(write_report(runs, output).read_text("utf-8"))


def in_chromium(path: Path, profile: Path) -> str:
    """The document as a real browser leaves it after its scripts ran."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --dump-dom"
    flags += " --disable-component-update --disable-sync --virtual-time-budget=2000"
    done = subprocess.run(
        [browser, *flags.split(), f"--user-data-dir={profile}", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def assert_inert(page: Page) -> None:
    """Nothing but our own script, and nothing that loads or runs anything else."""
    assert len(page.scripts) == 1
    assert "data-chart" in page.scripts[0]
    for name, attributes in page.elements:
        assert name not in ("img", "iframe", "object", "embed", "link", "base", "form", "a", "input")
        for attribute, value in attributes.items():
            assert not attribute.startswith("on")
            assert attribute not in ("src", "href", "style", "action")
            assert "javascript:" not in (value or "")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_example_run(tmp_path / "first", updates=40)


def test_one_run_shows_every_metric_evaluation_setting_and_version(run: Path, tmp_path: Path) -> None:
    page = page_of(run, output=tmp_path / "report.html")
    for words in (
        "quickstart + warm: first",
        "Held-out accuracy",
        "Training reward",
        "Entropy",
        "Response length",
        "Truncated",
        "Admitted",
        "Drift",
        "Largest ratio",
        "Policy lag",
        "in flight",
        "in queue",
        "Rollout speed",
        "Learner idle",
        "Gradient norm",
        "Learning rate",
        "Tool calls mean",
        "best constant answer",
        "before the first update",
        "delta 3e-3",
        "optim.lr 0.001 --set",
        "objective.delta 0.003 paper, Table 4",
        "torch 2.",
        "Held-out evaluations",
    ):
        assert words in page.text, words
    assert len(page.named("svg")) == 16
    assert_inert(page)


def test_the_warm_start_is_said_beside_the_accuracy_that_it_gave(run: Path, tmp_path: Path) -> None:
    start = lines_of(run / "evaluation.jsonl")[0]["sampled_accuracy"]
    text = page_of(run, output=tmp_path / "report.html").text
    assert "Warm start: the model saw 150 supervised steps" in text
    assert "no part of the method" in text
    assert f"Sampled accuracy {100 * start:.1f}% →" in text


def test_the_page_needs_nothing_from_outside_and_forbids_it(run: Path, tmp_path: Path) -> None:
    path = write_report([run], tmp_path / "report.html")
    page = Page(path.read_text("utf-8"))
    policy = next(
        m["content"] for m in page.named("meta") if m.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline'; script-src 'sha256-" in policy
    for outside in ("http://", "https://", "//cdn", "@import", "url("):
        assert outside not in path.read_text("utf-8")


def test_the_page_of_a_long_run_stays_small(tmp_path: Path) -> None:
    run = tmp_path / "long"
    run.mkdir()
    line = json.dumps(example_metrics(1))
    (run / "metrics.jsonl").write_text(
        "".join(line.replace('"update": 1', f'"update": {update}', 1) + "\n" for update in range(1, 6_001))
    )
    assert write_report([run], tmp_path / "report.html").stat().st_size < 400_000


def test_several_runs_are_compared(run: Path, tmp_path: Path) -> None:
    other = write_example_run(tmp_path / "second", updates=30, seed=3, lr=3e-4)
    page = page_of(run, other, output=tmp_path / "both.html")
    assert "2 runs compared" in page.text
    differing = page.text.partition("Settings that differ")[2]
    for words in ("optim.lr 0.001 0.0003", "seed 0 3", "train.updates 40 30"):
        assert words in differing
    assert "train.batch_size" not in differing
    assert "Held-out accuracy by time" in page.text
    assert page.text.count("all: Warm start") == page.text.count("Warm start") == 1
    assert_inert(page)


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    runs = [write_example_run(tmp_path / parent / "run", updates=3) for parent in ("a", "b")]
    text = page_of(*runs, output=tmp_path / "both.html").text
    assert str(runs[0]) in text
    assert "None: the runs have the same settings" in text


@pytest.mark.parametrize("count", [2, 9])
def test_a_setting_with_markup_in_it_is_inert_everywhere(tmp_path: Path, count: int) -> None:
    runs = []
    for index in range(count):
        run = write_example_run(tmp_path / f"{HOSTILE[:8]}{index}".replace("/", ""), updates=2)
        settings = {
            HOSTILE: {"value": HOSTILE, "source": HOSTILE},
            "optim.lr": {"value": [HOSTILE], "source": {"a": HOSTILE}},
        }
        provenance = dict.fromkeys(
            ("recipe", "engine", "command", "python", "platform", "version", "started", "cpus"),
            f"{HOSTILE}{index}",
        )
        provenance |= {"variants": [HOSTILE], "git": {"commit": HOSTILE, "dirty": True}, "settings": settings}
        provenance |= {"versions": {HOSTILE: HOSTILE}, "resumes": [{"update": HOSTILE}]}
        (run / "provenance.json").write_text(json.dumps(provenance))
        (run / "config.yaml").write_text(
            yaml.safe_dump({HOSTILE: {HOSTILE: HOSTILE, "list": [HOSTILE]}, "x": index})
        )
        line = {**example_metrics(1), HOSTILE: 1.0, "note": HOSTILE}
        (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        example = {"prompt": HOSTILE, "response": HOSTILE, "answer": HOSTILE, "score": HOSTILE}
        result = example_evaluation(
            0, 0.5, examples=[example, {"response": "\ud800\x00\x1b", "score": 10**400}]
        )
        (run / "evaluation.jsonl").write_text(json.dumps(result) + "\n")
        runs.append(run)
    page = page_of(runs[0], output=tmp_path / "one.html")
    assert_inert(page)
    assert page.text.count("<script>alert('x')</script>") >= 12
    assert_inert(page_of(*runs, output=tmp_path / "all.html"))


@pytest.mark.slow
def test_a_browser_runs_our_script_and_no_other(run: Path, tmp_path: Path) -> None:
    attack = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
    result = example_evaluation(0, 0.5, examples=[{"prompt": attack, "response": attack, "answer": attack}])
    (run / "evaluation.jsonl").write_text(json.dumps(result) + "\n")
    path = write_report([run], tmp_path / "report.html")
    document = in_chromium(path, tmp_path / "profile")
    assert document.count('class="tip"') == 16
    assert "<title>first, FlashREINFORCE</title>" in document
    # Even if markup got through one day, the page's policy keeps it from running.
    path.write_text(path.read_text("utf-8").replace("</main>", f"{attack}</main>"), "utf-8")
    assert "<title>first, FlashREINFORCE</title>" in in_chromium(path, tmp_path / "profile")


def test_sample_answers_are_shown_where_they_were_recorded(run: Path, tmp_path: Path) -> None:
    lines = lines_of(run / "evaluation.jsonl")
    lines[0]["examples"] = [{"prompt": "abc", "response": "abc", "answer": "cba", "score": 0}]
    lines[-1]["examples"] = [{"prompt": "abc", "response": "cba", "answer": "cba", "score": 1.0}, "no object"]
    (run / "evaluation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = page_of(run, output=tmp_path / "report.html").text
    assert "After update 0 score 0 prompt abc response abc answer cba" in text
    assert "After update 40 score 1 prompt abc response cba answer cba" in text


@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "evaluation.jsonl"])
def test_a_missing_file_is_said_in_the_page(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).unlink()
    assert f"{name} is missing" in page_of(run, output=tmp_path / "report.html").text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"a: [1, 2"),
        ("config.yaml", b"- a list"),
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", b"a: !!python/object/apply:os.system ['true']"),
        ("config.yaml", b"a: 2001-99-99"),
        ("config.yaml", b"{a: " * 3000),
        ("config.yaml", b"a: b\n" * 100_000),
        ("provenance.json", b'{"recipe": '),
        ("provenance.json", b"[" * 100_000),
        ("provenance.json", b"5"),
        ("evaluation.jsonl", b'{"update": 0, "sampled_accuracy": "high"}\n'),
        ("evaluation.jsonl", b'{"update": 0\n{"update": 1}\n'),
    ],
)
def test_a_damaged_file_is_said_in_the_page(run: Path, tmp_path: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    page = page_of(run, output=tmp_path / "report.html")
    assert f"{name} is damaged and not shown" in page.text
    assert_inert(page)


def test_references_in_yaml_cannot_blow_up_the_page(run: Path, tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    rows += ["b0: &b0 {k: x, l: x, m: x, n: x}"]
    rows += [f"b{i}: &b{i} {{k: *b{i - 1}, l: *b{i - 1}, m: *b{i - 1}, n: *b{i - 1}}}" for i in range(1, 12)]
    rows += ["loop: &loop {again: *loop}"]
    (run / "config.yaml").write_text("\n".join(rows))
    assert write_report([run], tmp_path / "report.html").stat().st_size < 1_500_000


def test_secrets_in_old_files_do_not_reach_the_page(run: Path, tmp_path: Path) -> None:
    provenance = json.loads((run / "provenance.json").read_text())
    provenance["command"] = "train --token=key45678x"
    provenance["settings"] = {"logging.api_key": {"value": "key45678x", "source": "HF_TOKEN=key45678x"}}
    (run / "provenance.json").write_text(json.dumps(provenance))
    (run / "config.yaml").write_text(
        "wandb: {api_key: key45678x, url: 'https://u:key45678x@h'}\nmax_tokens: 7\n"
    )
    text = page_of(run, output=tmp_path / "report.html").text
    assert "key45678x" not in text
    assert "max_tokens 7" in text


def test_a_cut_last_line_and_a_late_beginning_are_said(run: Path, tmp_path: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[10:]) + '{"update": 41, "rew')
    text = page_of(run, output=tmp_path / "report.html").text
    assert "line 31 was cut off" in text
    assert "begins at update 11" in text


def test_an_unfinished_run_and_a_resumed_one_are_said(run: Path, tmp_path: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:20]))
    provenance = json.loads((run / "provenance.json").read_text())
    provenance["resumes"] = [{"update": 7}, {"update": 12}]
    (run / "provenance.json").write_text(json.dumps(provenance))
    text = page_of(run, output=tmp_path / "report.html").text
    assert "The record ends at update 20 of 40 planned ones" in text
    assert "continued after update 7, 12" in text


@pytest.mark.parametrize("value", [None, 0.0, -1.0, 1e308, -1e308, 1e-320, 1e-99, 1e99, 2**53 + 1, 10**300])
def test_any_legal_number_can_be_drawn(tmp_path: Path, value: Any) -> None:
    run = tmp_path / "odd"
    run.mkdir()
    lines = []
    for update in range(1, 40):
        names = [metric.name for metric in METRICS[1:]] + ["extra_metric"]
        lines.append({"update": update, **dict.fromkeys(names, value)})
        lines[-1]["grad_norm"] = None if update % 3 else 0.1 * update
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = {**dict.fromkeys(example_evaluation(0, 0.5), value), "update": 0}
    (run / "evaluation.jsonl").write_text(
        json.dumps(result) + "\n" + json.dumps({**result, "update": 9}) + "\n"
    )
    for page in (page_of(run, output=tmp_path / "a.html"), page_of(run, run, output=tmp_path / "b.html")):
        assert_inert(page)
        for word in ("nan", "inf,", "inf "):
            drawn = " ".join(str(a.get("d") or a.get("points") or "") for _, a in page.elements)
            assert word not in drawn


def test_metrics_that_nobody_measured_are_listed(tmp_path: Path) -> None:
    run = tmp_path / "bare"
    run.mkdir()
    (run / "metrics.jsonl").write_text('{"update": 1, "reward_mean": 0.5}\n')
    text = page_of(run, output=tmp_path / "a.html").text
    assert re.search(r"Not measured: reward_std, .*entropy_mean", text)


# -- the command -----------------------------------------------------------------------------------------------


def report(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    return report_command.run(parser.parse_args([str(argument) for argument in arguments]))


def test_the_command_writes_into_the_run_or_beside_the_runs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(run) == 0
    assert capsys.readouterr().out == f"wrote {run / 'report.html'}\n"
    assert report(run, write_example_run(tmp_path / "b", updates=3)) == 0
    assert (tmp_path / "comparison.html").exists()
    assert report(run, "--output", tmp_path / "new" / "page.html") == 0
    assert (tmp_path / "new" / "page.html").exists()


def test_the_command_names_the_run_and_the_fix(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        assert report(*arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        return captured.err

    assert f"{tmp_path / 'none'} is not a directory; give" in refused(tmp_path / "none")
    assert f"{tmp_path} has no metrics.jsonl; give" in refused(run, tmp_path)
    metrics = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text("")
    assert "holds no update yet; wait" in refused(run)
    (run / "metrics.jsonl").write_text(metrics.replace('"update": 5,', '"update": 4,'))
    assert "metrics.jsonl, line 5: update 4 appears twice or out of order; restore" in refused(run)
    (run / "metrics.jsonl").write_text(metrics)
    (tmp_path / "file").write_text("x")
    assert "give another --output" in refused(run, "--output", tmp_path / "file" / "report.html")


def test_an_old_report_survives_a_failed_new_one(run: Path) -> None:
    assert report(run) == 0
    before = (run / "report.html").read_bytes()
    (run / "metrics.jsonl").write_text("broken\n")
    assert report(run) == 2
    assert (run / "report.html").read_bytes() == before


def test_the_script_is_valid_where_a_checker_is_installed() -> None:
    script = Path(report_command.__file__).with_name("report.js")
    try:
        done = subprocess.run(["node", "--check", str(script)], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("node is not installed")
    assert done.returncode == 0, done.stderr
