"""What a person sees while a run goes on: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flashreinforce_molt.telemetry.formatting import duration_text, number_text

PLAIN_INTERVAL_S = 5.0
"""Longest time between two plain lines while updates arrive."""
PLAIN_LINES = 20
"""Plain lines of a whole run, unless the interval asks for more."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-~=+*#"
_SPARKLINE_WIDTH = 24
_HISTORY_LENGTH = 512
_RECENT = 20
_TWO_COLUMNS = 92
"""Terminal width from which the table has two columns."""

_running: weakref.WeakSet[LiveView] = weakref.WeakSet()


class LiveView:
    """The view of one run. Used from one thread; other threads and forked workers do not disturb it.

    Whatever goes wrong with the display (closed pipe, tiny terminal, ASCII only) never reaches the run.
    """

    def __init__(
        self,
        total_updates: int,
        *,
        recipe: str = "",
        run_dir: str | os.PathLike[str] = "",
        engine: str = "local",
        mode: str = "async",
        delta: float | None = None,
        first_update: int = 1,
        live: str = "auto",
        stream: TextIO | None = None,
        every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_updates
        self._recipe, self._run_dir = recipe, os.fspath(run_dir)
        self._engine, self._mode, self._delta = engine, mode, delta
        self._first = first_update
        self._every = every or max(1, total_updates // PLAIN_LINES)
        self._clock = clock
        self._stream: TextIO | None = sys.stdout if stream is None else stream
        self._encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._unicode = self._encoding.lower().replace("-", "").startswith("utf")
        self._wanted = live
        self._lock = threading.RLock()
        self._display: Live | None = None
        self._started_at = clock()
        self._metrics: Mapping[str, Any] = {}
        self._evaluations: list[Mapping[str, Any]] = []
        self._reward, self._drift = _History(), _History()
        self._idle: deque[float] = deque(maxlen=_RECENT)
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=50)
        self._line_at: float | None = None
        self._line_update: int | None = None

    # -- what the run calls ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Show the view; plain output begins with a heading line."""
        with self._lock:
            self._started_at = self._clock()
            self._arrivals.append((self._started_at, self._first - 1))
            if self._wants_display():
                self._start_display()
            if self._display is None:
                self._print(self._heading())

    def update(self, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of one update, as they are written to `metrics.jsonl`."""
        with self._lock:
            now, update = self._clock(), int(metrics["update"])
            self._metrics = dict(metrics)
            self._arrivals.append((now, update))
            self._reward.add(metrics.get("reward_mean"))
            self._drift.add(metrics.get("sequence_kl_mean"))
            idle, step = metrics.get("learner_idle_s"), metrics.get("step_s")
            if idle is not None and step:
                self._idle.append(min(1.0, idle / step))
            if self._display is None and self._is_time_for_a_line(now, update):
                self._print_update(now)

    def message(self, text: str) -> None:
        """Say something that stays readable: above the live table, or as a plain line."""
        with self._lock:
            self._print(text)

    def evaluation(self, result: Mapping[str, Any]) -> None:
        """Take the result of one evaluation, as it is written to `evaluation.jsonl`."""
        with self._lock:
            self._evaluations.append(dict(result))
            self._print(_evaluation_line(result))

    def stop(self) -> None:
        """Leave the last state on the screen and give the terminal back; safe to call twice."""
        with self._lock:
            display, self._display = self._display, None
            _running.discard(self)
            if display is not None:
                try:
                    display.stop()
                except Exception:
                    self._stream = None
            elif self._metrics and self._line_update != self._metrics["update"]:
                self._print_update(self._clock())

    def __enter__(self) -> LiveView:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # -- plain lines -------------------------------------------------------------------------------------------

    def _is_time_for_a_line(self, now: float, update: int) -> bool:
        if self._line_at is None or self._line_update is None or update >= self._total:
            return True
        return now - self._line_at >= PLAIN_INTERVAL_S or update - self._line_update >= self._every

    def _print_update(self, now: float) -> None:
        self._line_at, self._line_update = now, self._metrics["update"]
        self._print(self._update_line())

    def _heading(self) -> str:
        names = [name for name in (self._recipe, f"{self._engine} engine", self._mode) if name]
        return f"{', '.join(names)}: updates {self._first} to {self._total}, written to {self._run_dir}"

    def _update_line(self) -> str:
        metrics = self._metrics
        width = len(str(self._total))
        pieces = [
            f"update {metrics['update']:>{width}}/{self._total}",
            f"reward {_fixed(metrics.get('reward_mean'))}",
            f"accepted {number_text(metrics.get('acceptance_rate'), 'fraction')}",
            f"drift {number_text(metrics.get('sequence_kl_mean'))} max {number_text(metrics.get('sequence_kl_max'))}",
            f"lag {number_text(metrics.get('policy_lag_mean'))}",
            f"{number_text(metrics.get('rollout_tokens_per_s'))} tok/s",
            f"idle {number_text(self._idle_share(), 'fraction')}",
            f"{duration_text(self._left())} left",
        ]
        return "  ".join(pieces)

    def _print(self, text: str) -> None:
        if self._stream is None:
            return
        text = self._printable(text)
        try:
            if self._display is not None:
                self._display.console.print(Text(text))
            else:
                print(text, file=self._stream, flush=True)
        except (OSError, ValueError):
            self._stream = None  # nobody is listening any more

    def _printable(self, text: str) -> str:
        """Without control characters, and only with characters that the terminal's encoding has."""
        text = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
        try:
            return text.encode(self._encoding, "replace").decode(self._encoding)
        except LookupError:
            return text.encode("ascii", "replace").decode("ascii")

    # -- the live table ----------------------------------------------------------------------------------------

    def _wants_display(self) -> bool:
        if self._wanted == "always":
            return True
        if self._wanted == "never" or self._stream is None:
            return False
        try:
            return self._stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
        except (OSError, ValueError, AttributeError):
            return False

    def _start_display(self) -> None:
        try:
            console = Console(
                file=self._stream, force_terminal=True, highlight=False, markup=False, emoji=False
            )
            display = Live(
                get_renderable=self._safe_table,
                console=console,
                refresh_per_second=4,
                vertical_overflow="crop",
                transient=False,
            )
            self._streams = (sys.stdout, sys.stderr)
            display.start(refresh=True)
        except Exception:
            return
        self._display = display
        _running.add(self)

    def _forget_after_fork(self) -> None:
        """In a forked worker: its output goes straight to the terminal, and it draws nothing."""
        self._lock = threading.RLock()
        self._display, self._stream = None, None
        sys.stdout, sys.stderr = self._streams

    def _safe_table(self) -> RenderableType:
        try:
            with self._lock:
                return self._table()
        except Exception as error:
            return Text(self._printable(f"live view unavailable: {type(error).__name__}"))

    def _table(self) -> RenderableType:
        console = self._display.console if self._display else Console()
        width, height = console.size
        rows = [(name, Text(self._printable(value)), style) for name, value, style in self._rows()]
        if width >= _TWO_COLUMNS:
            body: RenderableType = _side_by_side(rows)
        else:
            body = _one_below_the_other(rows[: max(1, height - 6)])
        title = Text(self._printable(f" FlashREINFORCE  {self._recipe} "), style="bold", overflow="crop")
        place = self._printable(f" {self._engine}, {self._mode}  {self._run_dir} ")
        subtitle = Text(place, style="dim", overflow="crop", no_wrap=True)
        content = Group(self._progress(), Text(""), body)
        if width < 30 or height < 8:
            return self._progress()
        return Panel(
            content,
            title=title,
            subtitle=subtitle,
            title_align="left",
            subtitle_align="right",
            width=min(width, 120),
        )

    def _progress(self) -> RenderableType:
        update = int(self._metrics.get("update", self._first - 1))
        line = Table.grid(expand=True, padding=(0, 1))
        line.add_column(ratio=1)
        line.add_column(no_wrap=True, overflow="crop")
        elapsed = duration_text(self._clock() - self._started_at)
        ending = "done" if update >= self._total else f"{duration_text(self._left())} left"
        line.add_row(
            ProgressBar(total=max(self._total, 1), completed=update),
            Text(f"{update}/{self._total}  {elapsed}, {ending}", overflow="crop"),
        )
        return line

    def _rows(self) -> list[tuple[str, str, str]]:
        get = self._metrics.get
        blocks = _BLOCKS if self._unicode else _ASCII_BLOCKS
        drift_max, acceptance = get("sequence_kl_max"), get("acceptance_rate")
        limit = f" of {number_text(self._delta)}" if self._delta is not None else ""
        lag = f"{number_text(get('policy_lag_mean'))}  in flight {number_text(get('lag_in_flight'))}, in queue {number_text(get('lag_in_queue'))}"
        rejecting = acceptance is not None and acceptance < 0.9
        return [
            ("reward", f"{_fixed(get('reward_mean'))}  {self._reward.sparkline(blocks)}", "bold"),
            ("accuracy", self._accuracy(), "bold"),
            ("accepted", number_text(acceptance, "fraction"), "yellow" if rejecting else ""),
            ("drift mean", f"{number_text(get('sequence_kl_mean'))}  {self._drift.sparkline(blocks)}", ""),
            ("drift max", f"{number_text(drift_max)}{limit}", ""),
            ("ratio max", number_text(get("ratio_max")), ""),
            ("lag", lag, ""),
            ("rollout", f"{number_text(get('rollout_tokens_per_s'))} tokens/s", ""),
            ("learner idle", number_text(self._idle_share(), "fraction"), ""),
            (
                "response",
                f"{number_text(get('response_tokens_mean'))} tokens, {number_text(get('truncated_fraction'), 'fraction')} truncated",
                "",
            ),
            ("entropy", number_text(get("entropy_mean")), ""),
            ("grad norm", number_text(get("grad_norm")), ""),
            ("lr", number_text(get("lr")), ""),
            ("dropped", number_text(get("dropped_total"), "count"), "yellow" if get("dropped_total") else ""),
        ]

    def _accuracy(self) -> str:
        if not self._evaluations:
            return "-"
        last, first = self._evaluations[-1], self._evaluations[0]
        text = f"{number_text(last.get('sampled_accuracy'), 'fraction')} at update {last['update']}"
        if len(self._evaluations) > 1:
            text += f", from {number_text(first.get('sampled_accuracy'), 'fraction')}"
        return text

    # -- derived numbers ---------------------------------------------------------------------------------------

    def _idle_share(self) -> float | None:
        return sum(self._idle) / len(self._idle) if self._idle else None

    def _left(self) -> float | None:
        """Seconds to the last update at the recent pace."""
        if len(self._arrivals) < 2:
            return None
        (begin, first), (end, last) = self._arrivals[0], self._arrivals[-1]
        if last <= first:
            return None
        return max(0, self._total - last) * (end - begin) / (last - first)


class _History:
    """Values of a whole run in bounded memory: full, neighbours are averaged."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._each = 1
        self._pending: list[float] = []

    def add(self, value: float | None) -> None:
        if value is None:
            return
        self._pending.append(float(value))
        if len(self._pending) < self._each:
            return
        self._values.append(sum(self._pending) / len(self._pending))
        self._pending.clear()
        if len(self._values) >= _HISTORY_LENGTH:
            pairs = zip(self._values[::2], self._values[1::2], strict=True)
            self._values = [(a + b) / 2 for a, b in pairs]
            self._each *= 2

    def sparkline(self, blocks: str) -> str:
        return sparkline(self._values, blocks)


def sparkline(values: Sequence[float], blocks: str = _BLOCKS, width: int = _SPARKLINE_WIDTH) -> str:
    """Values as a line of bars from their smallest to their largest; more values than `width` are averaged.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high <= low:
        return blocks[0] * count
    return "".join(blocks[int((mean - low) / (high - low) * (len(blocks) - 1) + 0.5)] for mean in means)


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _evaluation_line(result: Mapping[str, Any]) -> str:
    parts = [
        f"evaluation at update {result['update']}: {number_text(result.get('sampled_accuracy'), 'fraction')} sampled"
    ]
    if result.get("greedy_accuracy") is not None:
        parts.append(f"{number_text(result['greedy_accuracy'], 'fraction')} greedy")
    if result.get("constant_answer_baseline") is not None:
        parts.append(
            f"{number_text(result['constant_answer_baseline'], 'fraction')} for the best constant answer"
        )
    return f"{', '.join(parts)} ({number_text(result.get('tasks'), 'count')} held-out tasks)"


def _one_below_the_other(rows: Iterable[tuple[str, Text, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, overflow="crop", width=12)
    table.add_column(no_wrap=True, overflow="crop")
    for name, value, style in rows:
        table.add_row(name, value, style=style)
    return table


def _side_by_side(rows: list[tuple[str, Text, str]]) -> Table:
    half = (len(rows) + 1) // 2
    table = Table.grid(expand=True, padding=(0, 2))
    table.add_column(ratio=6)
    table.add_column(ratio=5)
    table.add_row(_one_below_the_other(rows[:half]), _one_below_the_other(rows[half:]))
    return table


def _forget_after_fork() -> None:
    for view in list(_running):
        view._forget_after_fork()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
