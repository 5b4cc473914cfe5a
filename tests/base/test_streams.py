"""Streams that cannot be written, or are closed, and text that would control a terminal."""

import errno
import io
import json
import os
import subprocess
import sys

import pytest

from shoestring.answers.renderers.terminal.document import plain
from shoestring.base import streams
from shoestring.base.streams import ReportStream, message_text, one_line, printable, write_messages
from tests.slow import slow_except

RECIPE = """
import contextlib, logging, os, sys, warnings
import torch

class Mine:
    epochs = 2
    effective_batch = 4
    def model(self): return torch.nn.Linear(3, 1)
    def batch(self, size): return torch.zeros(size, 3)
    def loss(self, model, batch):
        warnings.warn("w" * 9000)
        logging.getLogger("mine").warning("l" * 9000)
        print("o" * 9000, flush=True)
        print("e" * 9000, file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):
            os.write(2, b"from a C library")
        return model(batch).square().mean()
    def data(self): return torch.ones(10, 3)
"""


class Full(io.StringIO):
    def write(self, *_):
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = isatty = write


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\rb\bc\x9bd\x7f", "a\\x0db\\x08c\\x9bd\\x7f"),
        ("\u202eabc\u2066\u2028", "\\u202eabc\\u2066\\u2028"),
        (os.fsdecode(b"b\xff"), "b\\udcff"),
        ("two\n\tlines, zwölf, 中, 👍🏽, [red][/] :smile:", "two\n\tlines, zwölf, 中, 👍🏽, [red][/] :smile:"),
    ],
)
def test_text_does_not_control_the_terminal(text, printed, capsys):
    assert printable(text) == printed
    write_messages(text)
    assert capsys.readouterr().err == printed.replace("\n", "\n  ") + "\n"
    assert printable(plain(text)) == plain(text)
    assert ("[red][/] :smile:" in plain(text)) == ("[red]" in text)  # neither markup nor emoji of rich


def test_line_of_a_value_is_not_a_message_of_its_own():
    assert message_text("cannot read x\nerror: forged") == "cannot read x\n  error: forged"
    assert one_line("x\nerror: forged") == "x\\nerror: forged"
    assert len(message_text("x" * 10**5)) < 5000


@pytest.mark.parametrize("stream", [None, Full()])
def test_messages_never_fail(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    write_messages("lost")
    streams.flush()
    assert not ReportStream(stream).isatty()


def test_closed_stream_never_fails():
    stream = io.StringIO()
    stream.close()
    report = ReportStream(stream)
    report.writelines(["lost"])
    assert report.finish().errno == errno.EBADF and not report.isatty()


def test_text_outside_of_the_encoding_is_escaped():
    file = io.BytesIO()
    report = ReportStream(io.TextIOWrapper(file, encoding="ascii"))
    report.write("█ \udcff")
    report.flush()
    assert file.getvalue() == b"\\u2588 \\udcff"


def run_in_shell(folder, redirection, *arguments):
    """Run `shoestring` by a shell; return its exit status."""
    command = f'"{sys.executable}" -P -m shoestring "$@" {redirection}'
    return subprocess.run(["bash", "-o", "pipefail", "-c", command, "bash", *arguments], cwd=folder).returncode


@pytest.mark.parametrize(
    "redirection", slow_except(["<&- >&- 2>&-", ">/dev/full 2>/dev/full", "2>&1 | true"], "2>&1 | true")
)
def test_streams_that_fail_do_not_end_a_run(redirection, tmp_path):
    (tmp_path / "mine.py").write_text(RECIPE)
    assert run_in_shell(tmp_path, redirection, "train", "mine.py", "--run", "run") == 0
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "finished"
    for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines():
        json.loads(line)  # without the message of a C library


def test_standard_output_has_the_answer_alone(tmp_path):
    """Also if the recipe starts programs and prints past Python, in a folder with modules of its own."""
    printing = "import os; os.system('echo from a program'); os.write(1, b'from C code')"
    (tmp_path / "mine.py").write_text(f"{RECIPE}\n{printing}\n")
    (tmp_path / "random.py").write_text("raise RuntimeError('not the random of the standard library')")
    assert run_in_shell(tmp_path, ">out 2>err", "plan", "mine.py", "--on", "t4", "--json") == 0
    json.loads((tmp_path / "out").read_text())
    assert "from a program" in (tmp_path / "err").read_text()


def test_lost_answer_is_an_error(tmp_path):
    assert run_in_shell(tmp_path, ">/dev/full 2>err", "recipes", "--json") == 1
    assert (tmp_path / "err").read_text() == (
        "error: standard output could not be written: [Errno 28] No space left on device\n"
    )
    assert run_in_shell(tmp_path, "2>err | true", "recipes", "--json") == 0  # the reader has read enough
    assert (tmp_path / "err").read_text() == ""
