import io

import pytest

from shoestring.monitor.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def step(progress, update, **fields):
    known = {"epoch": 2, "updates": 10, "loss": 0.25, "samples": 320, "seconds": 2.0}
    progress.update(update=update, **{**known, **fields})


def test_plain_lines_are_few_and_without_escapes(capsys):
    stream, clock = io.StringIO(), Clock()
    with Progress(total_updates=1000, plain_seconds=10, stream=stream, clock=clock) as progress:
        for update in range(10, 310, 10):
            step(progress, update, memory_bytes=2**30, session_seconds_left=1200)
            clock.now += 1
    lines = stream.getvalue().splitlines()
    assert [line.split(" · ")[0] for line in lines] == [
        "update 10/1,000",
        "update 110/1,000",
        "update 210/1,000",
        "update 300/1,000",
    ]
    assert "\x1b" not in stream.getvalue()
    assert capsys.readouterr() == ("", "")


def test_a_line_says_what_is_known_and_no_more():
    stream = io.StringIO()
    with Progress(total_updates=100, plain_seconds=0, stream=stream) as progress:
        step(progress, 10)
        step(progress, 20, memory_bytes=3 * 2**29, session_seconds_left=1200)
    unknown, known = stream.getvalue().replace("\N{EN DASH}", "?").splitlines()
    assert unknown == "update 10/100 · epoch 2 · loss 0.25 · ? samples/s · ? · left: session ?, run ?"
    left = "left: session 20 min 00 s, run 16.0 s"
    assert known == f"update 20/100 · epoch 2 · loss 0.25 · 160 samples/s · 1.50 GiB · {left}"


def test_messages_stand_on_lines_of_their_own():
    stream = io.StringIO()
    with Progress(total_updates=100, stream=stream) as progress:
        progress.message("saved [bold]")
    assert stream.getvalue() == "saved [bold]\n"


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_a_terminal_shows_a_bar_with_messages_above_it(terminal):
    with Progress(total_updates=100, stream=terminal) as progress:
        step(progress, 50)
        progress.message("saved [bold]")
        step(progress, 60, session_seconds_left=90)
    seen = terminal.getvalue()
    assert "━" in seen and "50%" in seen and "saved [bold]" in seen
    assert seen.index("update 50/100") < seen.index("saved [bold]") < seen.index("update 60/100")
    assert "left: session 1 min 30 s" in seen


def test_the_cursor_comes_back_after_an_error(terminal):
    with pytest.raises(KeyError), Progress(total_updates=100, stream=terminal):
        raise KeyError
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Progress(total_updates=100, stream=terminal) as progress:
        step(progress, 50)
    assert terminal.getvalue().startswith("update 50/100 · ") and "\x1b" not in terminal.getvalue()


def test_by_default_stderr_and_never_stdout(capsys):
    with Progress(total_updates=100) as progress:
        step(progress, 50)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("update 50/100")


def test_a_run_that_this_session_does_not_finish_says_how_many_more_it_takes():
    stream, clock = io.StringIO(), Clock()
    with Progress(total_updates=1000, plain_seconds=0, stream=stream, clock=clock) as progress:
        for update in (10, 20):
            clock.now += 10
            step(progress, update, seconds=10.0, session_seconds_left=100 - clock.now)
    assert stream.getvalue().splitlines()[-1].endswith("left: session 1 min 20 s, run 16 min 20 s in 10 sessions")


def test_time_between_lines_that_no_update_took_counts_for_what_is_left():
    stream, clock = io.StringIO(), Clock()
    with Progress(total_updates=30, plain_seconds=0, stream=stream, clock=clock) as progress:
        for update, passed in ((10, 2), (20, 3)):
            clock.now += passed
            step(progress, update, seconds=2.0)
    assert stream.getvalue().splitlines()[-1].endswith("run 3.0 s")
