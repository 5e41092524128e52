"""What a person sees during a run, and that it never gets in the run's way."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from telemetry_example import example_evaluation, example_metrics

from flashreinforce_molt.telemetry import LiveView
from flashreinforce_molt.telemetry.live import sparkline

TESTS = Path(__file__).parent


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that claims to be a terminal of some encoding."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation("fileno")

    def write(self, text: str) -> int:
        text.encode(self._encoding)
        return super().write(text)


def run_plain(updates: int, seconds: float, **options: Any) -> list[str]:
    stream, clock = io.StringIO(), Clock()
    with LiveView(
        updates, recipe="quickstart", run_dir="runs/a", stream=stream, clock=clock, **options
    ) as view:
        for update in range(1, updates + 1):
            clock.now += seconds
            view.update(example_metrics(update, step_s=seconds))
    return stream.getvalue().splitlines()


def updates_of(lines: list[str]) -> list[int]:
    return [int(line.split()[1].split("/")[0]) for line in lines if line.startswith("update")]


def test_plain_output_begins_with_what_runs_and_has_no_escape_codes() -> None:
    lines = run_plain(3, 1.0)
    assert lines[0] == "quickstart, local engine, async: updates 1 to 3, written to runs/a"
    assert lines[1].startswith("update 1/3  reward 0.")
    for word in ("accepted", "drift", "lag", "tokens/s", "idle"):
        assert word in lines[1]
    assert not any("\x1b" in line for line in lines)


def test_a_slow_run_gets_a_line_for_each_update() -> None:
    assert updates_of(run_plain(8, 60.0)) == list(range(1, 9))


def test_a_fast_run_gets_about_twenty_lines_with_the_first_and_the_last() -> None:
    assert updates_of(run_plain(1000, 0.001)) == [*range(1, 1000, 50), 1000]


def test_at_least_every_five_seconds_a_line_appears() -> None:
    assert updates_of(run_plain(1000, 1.0))[:4] == [1, 6, 11, 16]


def test_an_interrupted_run_still_shows_its_last_update() -> None:
    stream = io.StringIO()
    view = LiveView(100, stream=stream, every=50, clock=Clock())

    def interrupted() -> None:
        with view:
            for update in range(1, 8):
                view.update(example_metrics(update))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert updates_of(stream.getvalue().splitlines()) == [1, 7]


def test_the_time_left_follows_the_recent_pace() -> None:
    lines = run_plain(4, 100.0)
    assert [line.rpartition("  ")[2] for line in lines[1:4]] == [
        "5 min 00 s left",
        "3 min 20 s left",
        "1 min 40 s left",
    ]
    assert "left" not in lines[4]


def test_a_warm_start_or_a_resume_does_not_distort_the_time_left() -> None:
    stream, clock = io.StringIO(), Clock()
    with LiveView(100, stream=stream, clock=clock) as view:
        clock.now += 500.0
        view.update(example_metrics(41, step_s=2.0))
        clock.now += 2.0
    assert "1 min 58 s left" in stream.getvalue()


def test_evaluations_and_messages_are_lines_and_stay_harmless() -> None:
    stream = io.StringIO()
    view = LiveView(10, stream=stream)
    view.message("before the start")
    with view:
        view.status("evaluating")
        view.evaluation(example_evaluation(0, 0.123))
        view.message("answer \x1b[2J\x07 [bold]text[/bold]")
    text = stream.getvalue()
    assert "evaluating" not in text
    assert text.startswith("before the start\n")
    assert "evaluation at update 0: 12.3% sampled, 17.3% greedy, 2.0% for the best constant answer" in text
    assert "\x1b" not in text
    assert "[bold]text[/bold]" in text


def test_metrics_that_were_not_measured_are_dashes() -> None:
    stream = io.StringIO()
    with LiveView(1, stream=stream) as view:
        nothing = dict.fromkeys(example_metrics(1))
        view.update({**nothing, "update": 1})
    assert "reward -  accepted -  drift - max -  lag -" in stream.getvalue()


@pytest.fixture
def fixed_size(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return monkeypatch


def run_live(stream: io.StringIO, **options: Any) -> str:
    with LiveView(10, recipe="quickstart", run_dir="runs/a", delta=3e-3, stream=stream, **options) as view:
        view.evaluation(example_evaluation(0, 0.1))
        for update in range(1, 11):
            view.update(example_metrics(update, updates=10))
        view.evaluation(example_evaluation(10, 0.9))
        print("a stray print")
    return stream.getvalue()


@pytest.mark.usefixtures("fixed_size")
def test_a_terminal_gets_the_table_and_its_cursor_back() -> None:
    before = (sys.stdout, sys.stderr)
    text = run_live(Terminal())
    for word in (
        "quickstart",
        "runs/a",
        "10/10",
        "reward",
        "90.0% at update 10, from 10.0%",
        "drift max",
        "of 3e-3",
    ):
        assert word in text
    assert "a stray print" in text
    assert text.rstrip().endswith("\x1b[?25h")
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize(
    "size", [("1", "1"), ("5", "3"), ("29", "40"), ("40", "8"), ("95", "12"), ("300", "90")]
)
def test_no_terminal_is_too_small(fixed_size: pytest.MonkeyPatch, size: tuple[str, str]) -> None:
    fixed_size.setenv("COLUMNS", size[0])
    fixed_size.setenv("LINES", size[1])
    assert "unavailable" not in run_live(Terminal())


@pytest.mark.usefixtures("fixed_size")
def test_a_terminal_without_unicode_gets_ascii() -> None:
    stream = Terminal("ascii")
    with LiveView(3, recipe="größe", run_dir="läufe/ä", stream=stream) as view:
        view.message("naïve …")
        for update in range(1, 4):
            view.update(example_metrics(update))
        print("größer")
    assert stream.getvalue().isascii()
    assert "gr??e" in stream.getvalue()


@pytest.mark.parametrize("live", ["auto", "always"])
def test_a_closed_pipe_does_not_stop_the_run(live: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1, closefd=True) as stream:
        with LiveView(3, stream=stream, live=live) as view:
            for update in range(1, 4):
                view.update(example_metrics(update))
            view.message("nobody listens")
        stream.close = lambda: None  # type: ignore[method-assign]


def test_a_stream_that_was_closed_does_not_stop_the_run() -> None:
    stream = io.StringIO()
    with LiveView(3, stream=stream) as view:
        stream.close()
        view.update(example_metrics(1))


@pytest.mark.usefixtures("fixed_size")
def test_other_threads_may_print_while_the_view_runs() -> None:
    stop = threading.Event()

    def chatter() -> None:
        while not stop.is_set():
            print("from a thread")

    threads = [threading.Thread(target=chatter) for _ in range(2)]
    stream = Terminal()
    with LiveView(60, stream=stream) as view:
        for thread in threads:
            thread.start()
        for update in range(1, 61):
            view.update(example_metrics(update))
            view.message(f"message {update}")
        stop.set()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
    assert "message 60" in stream.getvalue()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("fixed_size")
def test_a_worker_that_is_forked_from_a_running_view_prints_past_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with LiveView(3, stream=Terminal()) as view:
        view.update(example_metrics(1))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                view.update(example_metrics(2))
                view.message("not from here")
                view.stop()
                os.write(1, b"worker speaks\n")
                status = int(type(sys.stdout).__name__ == "FileProxy")
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        view.update(example_metrics(3))
    assert capfd.readouterr().out == "worker speaks\n"


def test_ctrl_c_gives_the_terminal_back() -> None:
    program = textwrap.dedent(
        """
        import signal, sys, time
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        sys.path.insert(0, sys.argv[1])
        from telemetry_example import example_metrics
        from flashreinforce_molt.telemetry import LiveView
        try:
            with LiveView(1000, live="always") as view:
                for update in range(1, 1001):
                    view.update(example_metrics(update))
                    print("ready", file=sys.stderr, flush=True) if update == 3 else None
                    time.sleep(0.01)
        except KeyboardInterrupt:
            print("after", flush=True)
            sys.exit(130)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(TESTS)], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():  # the stray print appears above the table
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=20)[0]
    assert process.returncode == 130
    assert "\x1b[?25h" in rest
    assert rest.endswith("after\n")


def test_sparklines_show_the_shape_in_a_fixed_width() -> None:
    assert sparkline([]) == ""
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline(list(range(8))) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(list(range(1000)))) == 24
