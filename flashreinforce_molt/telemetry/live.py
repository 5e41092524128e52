"""What a person sees while a run goes on: a live table in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flashreinforce_molt.telemetry.formatting import duration_text, number_text
from flashreinforce_molt.telemetry.redaction import redact

PLAIN_INTERVAL_S = 5.0
"""Longest time between two plain lines while updates arrive."""
PLAIN_LINES = 20
"""Plain lines of a whole run, unless the interval asks for more."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-~=+*#"
_SPARKLINE_WIDTH = 24
_HISTORY_LENGTH = 512
_RECENT_STEPS = 20
_RECENT_ARRIVALS = 50
_TWO_COLUMNS, _WIDEST = 96, 120
"""Terminal width from which the table has two columns, and where it stops growing."""
_WORRYING_ACCEPTANCE = 0.9

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
        self._total, self._first = total_updates, first_update
        self._recipe, self._run_dir = recipe, os.fspath(run_dir)
        self._engine, self._mode, self._delta = engine, mode, delta
        self._every = every or max(1, total_updates // PLAIN_LINES)
        self._wanted, self._clock = live, clock
        self._output = _Output(sys.stdout if stream is None else stream)
        self._display: Live | None = None
        self._size: Callable[[], tuple[int, int]] = lambda: (80, 24)
        self._redirected: tuple[TextIO, TextIO] | None = None
        self._started_at = clock()
        self._metrics: Mapping[str, Any] = {}
        self._evaluations: list[Mapping[str, Any]] = []
        self._reward, self._drift = _History(), _History()
        self._idle: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=_RECENT_ARRIVALS)
        self._line_at: float | None = None
        self._line_update: int | None = None
        # What the display's own thread reads: replaced as a whole, never changed.
        self._rows: tuple[_Row, ...] = ()
        self._status = ""

    # -- what the run calls ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Show the view; plain output begins with a heading line."""
        self._started_at = self._clock()
        self._rows = self._current_rows()
        if self._wants_display():
            self._start_display()
        if self._display is None:
            self._print(self._heading())

    def update(self, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of one update, as they are written to `metrics.jsonl`."""
        now, update = self._clock(), int(metrics["update"])
        self._metrics = dict(metrics)
        if (
            not self._arrivals
        ):  # what came before the first update, such as a warm start, says nothing about the pace
            self._arrivals.append((now - (metrics.get("step_s") or 0.0), update - 1))
        self._arrivals.append((now, update))
        self._reward.add(metrics.get("reward_mean"))
        self._drift.add(metrics.get("sequence_kl_mean"))
        idle, step = metrics.get("learner_idle_s"), metrics.get("step_s")
        if idle is not None and step:
            self._idle.append(min(1.0, idle / step))
        self._status = ""
        if self._display is not None:
            self._rows = self._current_rows()
        elif self._is_time_for_a_line(now, update):
            self._print_update(now)

    def status(self, text: str) -> None:
        """Say in the live table what goes on until the next update, such as an evaluation; plain output leaves it out."""
        self._status = text

    def message(self, text: str) -> None:
        """Say something that stays readable: above the live table, or as a plain line."""
        self._print(redact(text))

    def evaluation(self, result: Mapping[str, Any]) -> None:
        """Take the result of one evaluation, as it is written to `evaluation.jsonl`."""
        self._evaluations.append(dict(result))
        self._status = ""
        self._rows = self._current_rows()
        self._print(_evaluation_line(result))

    def stop(self) -> None:
        """Leave the last state on the screen and give the terminal back; safe to call twice."""
        display, self._display = self._display, None
        _running.discard(self)
        if display is not None:
            self._stop_display(display)
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
        place = f", written to {self._run_dir}" if self._run_dir else ""
        return f"{', '.join(names)}: updates {self._first} to {self._total}{place}"

    def _update_line(self) -> str:
        get = self._metrics.get
        width = len(str(self._total))
        left = self._left()
        pieces = [
            f"update {get('update'):>{width}}/{self._total}",
            f"reward {_fixed(get('reward_mean'))}",
            f"accepted {number_text(get('acceptance_rate'), 'fraction')}",
            f"drift {number_text(get('sequence_kl_mean'))} max {number_text(get('sequence_kl_max'))}",
            f"lag {number_text(get('policy_lag_mean'))}",
            f"{number_text(get('rollout_tokens_per_s'))} tokens/s",
            f"idle {number_text(self._idle_share(), 'fraction')}",
        ]
        if left is not None and self._metrics["update"] < self._total:
            pieces.append(f"{duration_text(left)} left")
        return "  ".join(pieces)

    def _print(self, text: str) -> None:
        text = _without_control_characters(text)
        if self._display is None:
            self._output.write(text + "\n")
            self._output.flush()
            return
        try:
            self._display.console.print(Text(text))
        except Exception:
            self._output.write(text + "\n")

    # -- the live table ----------------------------------------------------------------------------------------

    def _wants_display(self) -> bool:
        if self._wanted in ("always", "never"):
            return self._wanted == "always"
        return self._output.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")

    def _start_display(self) -> None:
        console = Console(
            file=cast(TextIO, self._output), force_terminal=True, highlight=False, markup=False, emoji=False
        )
        display = Live(
            get_renderable=self._safe_table,
            console=console,
            refresh_per_second=4,
            vertical_overflow="crop",
        )
        self._redirected = (sys.stdout, sys.stderr)
        self._display, self._size = display, lambda: console.size
        try:
            display.start(refresh=True)
        except Exception:
            self._display = None
            self._stop_display(display)
        else:
            _running.add(self)

    def _stop_display(self, display: Live) -> None:
        """Give back the cursor and the standard streams, whatever happens meanwhile."""
        try:
            display.stop()
        except Exception:
            self._restore(display)
        except BaseException:  # a second Ctrl-C
            self._restore(display)
            raise

    def _restore(self, display: Live) -> None:
        self._restore_streams()
        with contextlib.suppress(Exception):
            display.console.show_cursor(True)

    def _restore_streams(self) -> None:
        if self._redirected is not None:
            sys.stdout, sys.stderr = self._redirected

    def _forget_after_fork(self) -> None:
        """In a forked worker: its own output goes straight to the terminal, and this view draws nothing."""
        self._display = None
        self._output = _Output(None)
        self._restore_streams()

    def _safe_table(self) -> RenderableType:
        try:
            return self._table()
        except Exception as error:
            return Text(f"live view unavailable: {type(error).__name__}")

    def _table(self) -> RenderableType:
        width, height = self._size()
        if width < 30 or height < 8:
            return self._progress()
        rows = self._rows
        if width >= _TWO_COLUMNS:
            body: RenderableType = _side_by_side(rows)
        else:
            body = _one_below_the_other(rows[: max(1, height - 6)])
        place = "  ".join(filter(None, [f"{self._engine}, {self._mode}", self._run_dir]))
        return Panel(
            Group(self._progress(), Text(""), body),
            title=_line(f" FlashREINFORCE  {self._recipe} ", "bold"),
            subtitle=_line(f" {place} ", "dim"),
            title_align="left",
            subtitle_align="right",
            border_style="dim",
            width=min(width, _WIDEST),
        )

    def _progress(self) -> RenderableType:
        update = int(self._metrics.get("update", self._first - 1))
        left = self._left()
        if self._status:
            ending = f", {self._status}"
        elif update >= self._total:
            ending = ", done"
        else:
            ending = "" if left is None else f", {duration_text(left)} left"
        elapsed = duration_text(self._clock() - self._started_at)
        line = Table.grid(expand=True, padding=(0, 1))
        line.add_column(ratio=1, min_width=4)
        line.add_column(no_wrap=True, overflow="crop")
        line.add_row(
            ProgressBar(total=max(self._total, 1), completed=update),
            _line(f"{update}/{self._total}  {elapsed}{ending}"),
        )
        return line

    def _current_rows(self) -> tuple[_Row, ...]:
        get = self._metrics.get
        blocks = _BLOCKS if self._output.unicode else _ASCII_BLOCKS
        acceptance, drift_max = get("acceptance_rate"), get("sequence_kl_max")
        limit = f" of {number_text(self._delta)}" if self._delta is not None else ""
        parts = (
            f"in flight {number_text(get('lag_in_flight'))}, in queue {number_text(get('lag_in_queue'))}, "
            f"max {number_text(get('policy_lag_max'))}"
        )
        rejecting = acceptance is not None and acceptance < _WORRYING_ACCEPTANCE
        return (
            _Row("reward", f"{_fixed(get('reward_mean'))}  {self._reward.sparkline(blocks)}", "bold"),
            _Row("accuracy", self._accuracy(), "bold"),
            _Row("accepted", number_text(acceptance, "fraction"), "yellow" if rejecting else ""),
            _Row("drift mean", f"{number_text(get('sequence_kl_mean')):7}  {self._drift.sparkline(blocks)}"),
            _Row("drift max", f"{number_text(drift_max)}{limit}"),
            _Row("ratio max", number_text(get("ratio_max"))),
            _Row("lag", f"{number_text(get('policy_lag_mean'))}  {parts}"),
            _Row("rollout", f"{number_text(get('rollout_tokens_per_s'))} tokens/s"),
            _Row("learner idle", number_text(self._idle_share(), "fraction")),
            _Row("length", f"{number_text(get('response_tokens_mean'))} tokens"),
            _Row("truncated", number_text(get("truncated_fraction"), "fraction")),
            _Row("entropy", number_text(get("entropy_mean"))),
            _Row("grad norm", f"{number_text(get('grad_norm'))}, lr {number_text(get('lr'))}"),
            _Row(
                "dropped",
                number_text(get("dropped_total"), "count"),
                "yellow" if get("dropped_total") else "",
            ),
        )

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
        arrivals = self._arrivals
        if len(arrivals) < 2:
            return None
        (begin, first), (end, last) = arrivals[0], arrivals[-1]
        if last <= first:
            return None
        return max(0, self._total - last) * (end - begin) / (last - first)


class _Output:
    """A stream that never raises: what its encoding lacks becomes '?', and a closed one takes no more."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.unicode = self.encoding.lower().replace("-", "").startswith("utf")

    def write(self, text: str) -> int:
        if self._stream is None:
            return len(text)
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
        except (OSError, ValueError, LookupError):
            self._stream = None
        except RuntimeError:  # a signal handler speaks while the stream is being written
            with contextlib.suppress(OSError, ValueError):
                os.write(self.fileno(), text.encode(self.encoding, "replace"))
        return len(text)

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except (OSError, ValueError):
            self._stream = None
        except RuntimeError:
            pass  # see write

    def isatty(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError, AttributeError):
            return False

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("no stream")
        return self._stream.fileno()


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


@dataclass(frozen=True)
class _Row:
    name: str
    value: str
    style: str = ""


def _line(text: str, style: str = "") -> Text:
    return Text(_without_control_characters(text), style=style, no_wrap=True, overflow="crop")


def _without_control_characters(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _one_below_the_other(rows: Sequence[_Row]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, overflow="crop", min_width=12)
    table.add_column(no_wrap=True, overflow="crop")
    for row in rows:
        table.add_row(row.name, _line(row.value, row.style))
    return table


def _side_by_side(rows: Sequence[_Row]) -> Table:
    half = (len(rows) + 1) // 2
    table = Table.grid(expand=True, padding=(0, 2))
    table.add_column(ratio=3)
    table.add_column(ratio=2)
    table.add_row(_one_below_the_other(rows[:half]), _one_below_the_other(rows[half:]))
    return table


def _forget_after_fork() -> None:
    for view in list(_running):
        view._forget_after_fork()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
