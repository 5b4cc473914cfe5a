"""The progress display: a live bar on a terminal, periodic plain lines everywhere else.

Everything is written to stderr; stdout is reserved for data.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from shoestring.base.streams import ReportStream, message_text
from shoestring.base.units import bytes_text, count_text, seconds_text
from shoestring.training.monitor.speed import Speed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_UNKNOWN = "\N{EN DASH}"


def is_reward(name: str) -> bool:
    """Return whether a value that a trainer logs is a reward: `reward`, `rewards/chosen` or `rewards/NAME/mean`."""
    return name == "reward" or (name.startswith("rewards/") and not name.endswith("/std"))


class Progress:
    """Displays the progress of a run of `total_updates`.

    On a terminal it is a bar and a line of facts, redrawn at every `update`. Elsewhere (a log, a notebook) it is
    one plain line at most every `plain_seconds`, and one at the end.
    """

    def __init__(
        self,
        *,
        total_updates: int,
        start_update: int = 0,
        plain_seconds: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_updates = total_updates
        self._update = start_update
        self._plain_seconds = plain_seconds
        self._stream: Any = ReportStream(stream or sys.stderr)
        self._clock = clock
        self._speed = Speed()
        self._start_time = self._last_update_time = clock()
        self._facts = "starting"
        self._printed_at: float | None = None
        self._printed = ""
        self._live: Live | None = None

    def expect(self, total_updates: int) -> None:
        """Set the total number of updates of the run."""
        self._total_updates = total_updates

    def __enter__(self) -> Self:
        live = _live_area(self._stream)
        if self._stream.isatty() and not live.console.is_dumb_terminal:
            live.start()
            self._live = live
            self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None
        elif self._printed_at is not None:
            self._print_line()

    def update(
        self,
        *,
        update: int,
        epoch: int,
        updates: int,
        loss: float,
        samples: int,
        seconds: float,
        memory_bytes: int | None = None,
        session_seconds_left: float | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Show that the run has reached `update`; the last `updates` took `seconds` for `samples` samples.

        Of `metrics`, rewards are shown; `reward`, their sum, in place of the loss, which is near 0 whatever is learned.
        """
        current_time = self._clock()
        other_seconds = max(0.0, current_time - self._last_update_time - seconds)
        self._speed.add(updates=updates, samples=samples, seconds=seconds, other_seconds=other_seconds)
        self._last_update_time = current_time
        self._update = update
        run_seconds_left = self._speed.seconds_for(max(0, self._total_updates - update))
        rate = self._speed.samples_per_second()
        self._facts = " · ".join(
            (
                f"epoch {epoch}",
                *_result_texts(loss, metrics or {}),
                f"{_UNKNOWN if rate is None else _rate_text(rate)} samples/s",
                _UNKNOWN if memory_bytes is None else bytes_text(memory_bytes),
                f"time left: session {_left_text(session_seconds_left)}, run {_left_text(run_seconds_left)}"
                + _sessions_text(run_seconds_left, session_seconds_left, current_time - self._start_time),
            )
        )
        if self._live:
            self._draw()
        elif self._printed_at is None or self._clock() - self._printed_at >= self._plain_seconds:
            self._print_line()

    def message(self, text: str) -> None:
        """Print a permanent line, above the bar or among the plain lines."""
        text = message_text(text)
        if self._live:
            self._live.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _position(self) -> str:
        return f"update {count_text(self._update)}/{count_text(self._total_updates)}"

    def _print_line(self) -> None:
        line = f"{self._position()} · {self._facts}"
        if line != self._printed:
            self.message(line)
        self._printed, self._printed_at = line, self._clock()

    def _draw(self) -> None:
        if self._live:
            bar = _bar(self._position(), self._update, self._total_updates, self._facts)
            self._live.update(bar, refresh=True)


def _result_texts(loss: float, metrics: Mapping[str, float]) -> Iterator[str]:
    """Yield the mean reward, or the loss where there is none, and the further rewards."""
    yield f"reward {metrics['reward']:.4g}" if "reward" in metrics else f"loss {loss:.4g}"
    for name, value in metrics.items():
        if is_reward(name) and name != "reward":
            yield f"{name} {value:.4g}"


def _rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _left_text(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else seconds_text(max(0.0, seconds))


def _sessions_text(run_left: float | None, session_left: float | None, session_elapsed: float) -> str:
    """Describe how many sessions of this length the run needs; empty when this session finishes it."""
    if run_left is None or session_left is None or run_left <= session_left or session_left <= 0:
        return ""
    return f" in {1 + math.ceil((run_left - session_left) / (session_left + session_elapsed))} sessions"


def _live_area(stream: TextIO) -> "Live":
    from rich.console import Console
    from rich.live import Live

    # No redrawing thread and no redirected streams: workers are forked from this process, and a worker that
    # inherits a locked console lock would hang at its first warning.
    return Live(
        console=Console(file=stream, force_jupyter=False),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _bar(position: str, update: int, total_updates: int, facts: str) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 1), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    share = update / total_updates if total_updates else 1.0
    line.add_row(position, ProgressBar(total=total_updates, completed=update), f"{share:.0%}")
    return Group(line, Text(facts))
