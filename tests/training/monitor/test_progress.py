import errno
import io

import pytest

from shoestring.training.monitor.progress import Progress


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


class FakeClock:
    time = 0.0

    def __call__(self):
        return self.time


def report_update(progress, update, **fields):
    defaults = {"epoch": 2, "updates": 10, "loss": 0.25, "samples": 320, "seconds": 2.0}
    progress.update(update=update, **{**defaults, **fields})


def test_plain_lines_are_few_and_without_escapes(capsys):
    stream, clock = io.StringIO(), FakeClock()
    with Progress(total_updates=1000, plain_seconds=10, stream=stream, clock=clock) as progress:
        for update in range(10, 310, 10):
            report_update(progress, update, memory_bytes=2**30, session_seconds_left=1200)
            clock.time += 1
    lines = stream.getvalue().splitlines()
    assert [line.split(" · ")[0] for line in lines] == [
        "update 10/1,000",
        "update 110/1,000",
        "update 210/1,000",
        "update 300/1,000",
    ]
    assert "\x1b" not in stream.getvalue()
    assert capsys.readouterr() == ("", "")


def test_unknown_values_are_shown_as_dashes():
    stream = io.StringIO()
    with Progress(total_updates=100, plain_seconds=0, stream=stream) as progress:
        report_update(progress, 10)
        report_update(progress, 20, memory_bytes=3 * 2**29, session_seconds_left=1200)
    first_line, second_line = stream.getvalue().replace("\N{EN DASH}", "?").splitlines()
    assert first_line == "update 10/100 · epoch 2 · loss 0.25 · ? samples/s · ? · time left: session ?, run ?"
    time_left = "time left: session 20 min 00 s, run 16.0 s"
    assert second_line == f"update 20/100 · epoch 2 · loss 0.25 · 160 samples/s · 1.50 GiB · {time_left}"


def test_messages_are_separate_lines():
    stream = io.StringIO()
    with Progress(total_updates=100, stream=stream) as progress:
        progress.message("saved [bold]")
    assert stream.getvalue() == "saved [bold]\n"


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return FakeTerminal()


def test_terminal_shows_messages_above_the_bar(terminal):
    with Progress(total_updates=100, stream=terminal) as progress:
        report_update(progress, 50)
        progress.message("saved [bold]")
        report_update(progress, 60, session_seconds_left=90)
    output = terminal.getvalue()
    assert "━" in output and "50%" in output and "saved [bold]" in output
    assert output.index("update 50/100") < output.index("saved [bold]") < output.index("update 60/100")
    assert "left: session 1 min 30 s" in output


def test_messages_do_not_control_the_terminal(terminal):
    with Progress(total_updates=100, stream=terminal) as progress:
        progress.message("note: \x1b]0;title\x07 [/] :smile:\nerror: forged")
    assert "note: \\x1b]0;title\\x07 [/] :smile:\n  error: forged" in terminal.getvalue()


def test_closed_terminal_does_not_end_training(monkeypatch, terminal):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    with Progress(total_updates=100, stream=terminal) as progress:
        monkeypatch.setattr(terminal, "write", fail)
        monkeypatch.setattr(terminal, "flush", fail)
        report_update(progress, 50)
        progress.message("lost")


def test_cursor_is_restored_after_an_error(terminal):
    with pytest.raises(KeyError), Progress(total_updates=100, stream=terminal):
        raise KeyError
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")


def test_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Progress(total_updates=100, stream=terminal) as progress:
        report_update(progress, 50)
    assert terminal.getvalue().startswith("update 50/100 · ") and "\x1b" not in terminal.getvalue()


def test_default_stream_is_stderr(capsys):
    with Progress(total_updates=100) as progress:
        report_update(progress, 50)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("update 50/100")


def test_unfinished_run_shows_the_number_of_sessions():
    stream, clock = io.StringIO(), FakeClock()
    with Progress(total_updates=1000, plain_seconds=0, stream=stream, clock=clock) as progress:
        for update in (10, 20):
            clock.time += 10
            report_update(progress, update, seconds=10.0, session_seconds_left=100 - clock.time)
    assert stream.getvalue().splitlines()[-1].endswith("left: session 1 min 20 s, run 16 min 20 s in 10 sessions")


def test_remaining_time_includes_time_outside_updates():
    stream, clock = io.StringIO(), FakeClock()
    with Progress(total_updates=30, plain_seconds=0, stream=stream, clock=clock) as progress:
        for update, elapsed in ((10, 2), (20, 3)):
            clock.time += elapsed
            report_update(progress, update, seconds=2.0)
    assert stream.getvalue().splitlines()[-1].endswith("run 3.0 s")


def test_mean_reward_is_shown_in_place_of_the_loss():
    stream = io.StringIO()
    with Progress(total_updates=100, plain_seconds=0, stream=stream) as progress:
        metrics = {"rewards/form/mean": 0.5, "rewards/form/std": 0.1, "reward": 1.25, "reward_std": 0.2, "kl": 0.1}
        report_update(progress, 10, loss=0.0, metrics=metrics)
        report_update(progress, 20, metrics={"rewards/chosen": 0.5})
    first, second, *_ = stream.getvalue().splitlines()
    assert "epoch 2 · reward 1.25 · rewards/form/mean 0.5 · " in first and "loss" not in first and "std" not in first
    assert "epoch 2 · loss 0.25 · rewards/chosen 0.5 · " in second
