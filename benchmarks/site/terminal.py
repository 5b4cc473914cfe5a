"""A moving picture of a terminal: the commands really run, and a run is planned, stopped, killed and finished.

    pip install pyte
    python benchmarks/site/terminal.py --out docs/images/terminal.svg

Each command runs in a terminal of its own size, and what it writes is recorded with its times. Pauses in which nothing
but a spinner is written are cut to `LONGEST_PAUSE`; nothing else is changed. Before the recording, another run is
trained without a break, for the comparison at the end. The picture is an SVG without scripts. Where it does not move,
it shows its end.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import pyte

COLUMNS, LINES = 96, 26
MOST_LINES = 300
"""Lines of the whole recording: the screen that is recorded does not scroll, the picture moves."""
LONGEST_PAUSE, KEY_SECONDS, END_SECONDS = 0.5, 0.03, 5.0
FRAMES_PER_SECOND = 4
FONT_WIDTH, LINE_HEIGHT, MARGIN = 8.43, 18, 14
UNBROKEN = "shoestring train temporal --run runs/unbroken --set epochs=15"
TRAIN = UNBROKEN.replace("unbroken", "goog")
COLORS = {"green": "#7ee787", "red": "#ff7b72", "brown": "#e3b341", "yellow": "#e3b341", "blue": "#79c0ff"}
COLORS |= {"cyan": "#76e3ea", "magenta": "#d2a8ff", "brightblack": "#8b949e"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command as a person types it, and what interrupts it."""

    command: str
    interruption: signal.Signals | None = None
    after: str = ""
    """The text after which the command is interrupted."""


STEPS = (
    Step(command="shoestring plan temporal --on kaggle-t4 | head -16"),
    Step(command=TRAIN, interruption=signal.SIGINT, after="update 9/"),
    Step(command=TRAIN, interruption=signal.SIGKILL, after="update 24/"),
    Step(command=TRAIN),
    Step(command="cmp runs/unbroken/light/model.safetensors runs/goog/light/model.safetensors && echo the same bits"),
)

_SPINNER = re.compile("[\u2800-\u28ff]")
Frame = tuple[float, tuple[str, ...]]
"""The seconds at which lines are first seen, and all lines so far as SVG."""


class Recording:
    """The screen of a terminal over time, without long pauses."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, MOST_LINES)
        self._stream = pyte.ByteStream(self._screen)
        self.seconds = 0.0
        self._text = ""
        self._waited = 0.0
        """The seconds for which the text, without a spinner, has been what it is."""
        self.frames: list[Frame] = []

    def write(self, data: bytes, pause: float) -> None:
        """Add what was written after a pause."""
        self._stream.feed(data)
        lines = tuple(_line(self._screen.buffer[row]) for row in range(self._screen.cursor.y + 1))
        text = _SPINNER.sub("", "\n".join(lines))
        pause = min(pause, LONGEST_PAUSE - self._waited)
        self.seconds += pause
        self._waited, self._text = (self._waited + pause, text) if text == self._text else (0.0, text)
        if self.frames and self.seconds - self.frames[-1][0] < 1 / FRAMES_PER_SECOND:
            self.frames[-1] = (self.frames[-1][0], lines)
        elif not self.frames or self.frames[-1][1] != lines:
            self.frames.append((self.seconds, lines))

    def type(self, command: str) -> None:
        """Add a prompt and a command, key by key."""
        self.write(b"\x1b[32m$\x1b[0m ", LONGEST_PAUSE)
        for key in command:
            self.write(key.encode(), KEY_SECONDS)
        self.write(b"\r\n", LONGEST_PAUSE / 2)


def record(step: Step, recording: Recording, folder: Path) -> None:
    """Run a command in a terminal and record what it writes."""
    recording.type(step.command)
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ.update(_environment())
        os.environ.pop("COLUMNS", None)  # the width is that of the terminal
        is_several = "|" in step.command or "&&" in step.command
        os.execvp("bash", ["bash", "-c", f"exec 2>&1; {step.command}" if is_several else f"exec {step.command}"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    text, last = b"", time.monotonic()
    is_interrupted = step.interruption is None
    for data in _output(terminal):
        now = time.monotonic()
        recording.write(data, now - last)
        text, last = text + data, now
        if not is_interrupted and step.after.encode() in text:
            is_interrupted = True
            assert step.interruption is not None
            if step.interruption is signal.SIGINT:
                os.write(terminal, b"\x03")
            else:
                os.killpg(process, step.interruption)
    os.waitpid(process, 0)
    if step.interruption is signal.SIGKILL:
        recording.write(b"\r\nKilled\r\n", LONGEST_PAUSE)


def _environment() -> dict[str, str]:
    return {"TERM": "xterm-256color", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def _output(terminal: int) -> Iterator[bytes]:
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the end of a terminal without processes
            return
        if not data:
            return
        yield data


def _line(cells: dict[int, pyte.screens.Char]) -> str:
    """Return a line of the screen as SVG: runs of characters of the same style."""
    parts: list[str] = []
    text, style = "", ("", False)
    for column in range(COLUMNS + 1):
        cell = cells[column] if column < COLUMNS else None
        cell_style = (COLORS.get(cell.fg, ""), cell.bold) if cell else None
        if text and cell_style != style:
            parts.append(_span(text, *style))
            text = ""
        if cell and cell_style:
            style, text = cell_style, text + cell.data
    return "".join(parts).rstrip()


def _span(text: str, color: str, is_bold: bool) -> str:
    attributes = (f' fill="{color}"' if color else "") + (' font-weight="bold"' if is_bold else "")
    return f"<tspan{attributes}>{escape(text)}</tspan>" if attributes and text.strip() else escape(text)


def svg(frames: Sequence[Frame], seconds: float) -> str:
    """Return the recording as an SVG that is shown again and again."""
    width, height = COLUMNS * FONT_WIDTH + 2 * MARGIN, LINES * LINE_HEIGHT + 2 * MARGIN
    duration = seconds + END_SECONDS
    texts, rules = [], []
    for number, (row, line, start, end) in enumerate(_intervals(frames, duration)):
        y = MARGIN + (row + 1) * LINE_HEIGHT - 5
        is_last = end == duration
        place = f'class="{"t l" if is_last else "t"}" x="{MARGIN}" y="{y}"'
        texts.append(f'<text {place} style="animation-name:k{number}">{line}</text>')
        first, last = (f"{100 * moment / duration:.2f}%" for moment in (start, end))
        hidden = "" if is_last else f"{last}{{visibility:hidden}}"
        rules.append(f"@keyframes k{number}{{0%{{visibility:hidden}}{first}{{visibility:visible}}{hidden}}}")
    tops = [(start, max(0, len(lines) - LINES) * LINE_HEIGHT) for start, lines in frames]
    changes = [(start, top) for index, (start, top) in enumerate(tops) if not index or top != tops[index - 1][1]]
    moves = "".join(f"{100 * start / duration:.2f}%{{transform:translateY(-{top}px)}}" for start, top in changes)
    style = (
        "text{font:14px/18px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#e6edf3;white-space:pre}"
        f".t,.m{{animation:{duration:.2f}s step-end infinite}}.t{{visibility:hidden}}.l{{visibility:visible}}"
        f".m{{animation-name:m;transform:translateY(-{tops[-1][1]}px)}}@keyframes m{{{moves}}}"
        "@media (prefers-reduced-motion:reduce){.t,.m{animation:none}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" aria-label="A run is '
        "planned for a T4, stopped with Ctrl-C, killed, finished by the same command, and compared with an unbroken "
        'run: the same bits">'
        f'<style>{style}{"".join(rules)}</style><rect width="100%" height="100%" rx="8" fill="#0d1117"/>'
        f'<svg y="{MARGIN}" width="{width:.0f}" height="{LINES * LINE_HEIGHT}" viewBox="0 {MARGIN} {width:.0f} '
        f'{LINES * LINE_HEIGHT}"><g class="m">{"".join(texts)}</g></svg></svg>\n'
    )


def _intervals(frames: Sequence[Frame], end: float) -> Iterator[tuple[int, str, float, float]]:
    """Yield each row's texts that are not empty, with the seconds from and until which they are seen."""
    for row in range(max(len(lines) for _, lines in frames)):
        text, since = "", 0.0
        for start, lines in [*frames, (end, ())]:
            new = lines[row] if row < len(lines) else ""
            if new != text or start == end:
                if text:
                    yield row, text, since, start
                text, since = new, start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    recording = Recording()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | _environment()
        subprocess.run(shlex.split(UNBROKEN), cwd=folder, env=environment, check=True, stdout=sys.stderr)
        for step in STEPS:
            print(shlex.quote(step.command), file=sys.stderr)
            record(step, recording, Path(folder))
    options.out.write_text(svg(recording.frames, recording.seconds), encoding="utf-8")
    print(f"{options.out}: {len(recording.frames)} frames, {recording.seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
