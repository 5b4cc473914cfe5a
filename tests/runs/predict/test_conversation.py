"""A conversation on a terminal, and what `predict` does without one."""

import fcntl
import io
import os
import pty
import re
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

import shoestring
from shoestring import api
from tests.runs.predict import chatting_recipe, scorer

ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, which tests must not change."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert shoestring.train(chatting_recipe.__file__, run=run).status == "finished"
    return run


def talk(run, *lines, **values):
    """Return what is printed for these lines, if standard input ends after them."""
    output = io.StringIO()
    is_over = api.converse(
        run, input_stream=io.StringIO("".join(f"{line}\n" for line in lines)), output_stream=output, **values
    )
    assert is_over
    return output.getvalue()


def test_history_is_kept_until_it_is_reset(run):
    said = talk(run, " one ", "", "two", "/reset", "three", "/exit", "four")
    assert said == (
        "> 1: you said one after []\n"
        "> > 3: you said two after ['one', '1: you said one after []']\n"
        "> > 1: you said three after []\n"
        "> "
    )


def test_answer_cannot_change_the_terminal(run):
    assert talk(run, "color") == "> \\x1b[31mred\n> \n"


def test_options_of_predictions_are_used(run):
    assert "YOU SAID ONE" in talk(run, "one", shout=True)


def test_question_that_fails_is_dropped(run, capsys):
    said = talk(run, "fail", "memory", "one")
    assert said.startswith("> \n> \n> 1: you said one after []") and said.endswith("\n> \n")
    messages = capsys.readouterr().err
    assert "error: the prompt is too long" in messages
    assert "error: out of memory: CUDA out of memory" in messages and "/reset" in messages


def test_recipe_without_the_part_is_left_to_predict(tmp_path):
    run = tmp_path / "run"
    shoestring.train(str(Path(scorer.__file__)), run=run)
    output = io.StringIO()
    assert not api.converse(run, input_stream=io.StringIO("one\n"), output_stream=output)
    assert not output.getvalue()


def test_predictions_without_a_terminal_are_as_before(run, run_command):
    status, out, _ = run_command("predict", run)
    assert status == 0 and len(out.splitlines()) == 4


class Terminal:
    """A terminal with a process that it controls."""

    def __init__(self, *arguments):
        self._master, slave = pty.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        command = [sys.executable, "-c", ON_ITS_TERMINAL, sys.executable, "-m", "shoestring", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        fcntl.fcntl(self._master, fcntl.F_SETFL, os.O_NONBLOCK)
        self.text = ""

    def type(self, text):
        os.write(self._master, text.encode())

    def wait_for(self, pattern, seconds=60):
        """Wait for text that has not been waited for yet."""
        give_up_at = time.monotonic() + seconds
        while not (match := re.search(pattern, self.text)):
            assert time.monotonic() < give_up_at, self.text
            try:
                self.text += os.read(self._master, 65536).decode()
            except BlockingIOError:
                time.sleep(0.01)
        self.text = self.text[match.end() :]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_conversation_on_a_terminal(run):
    terminal = Terminal("predict", run)
    try:
        terminal.wait_for("/reset begins a new conversation")
        terminal.wait_for("> ")
        terminal.type("endless\n")
        terminal.wait_for("1: more more")
        terminal.type("\x03")
        terminal.wait_for("\n> ")
        terminal.type("one\n")
        terminal.wait_for(r"3: you said one after \['endless', '1: more")
        terminal.wait_for("\n> ")
        terminal.type("\x03")  # nothing is interrupted
        terminal.wait_for("Ctrl-D ends it")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
