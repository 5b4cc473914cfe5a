"""The outcome of a session in a terminal."""

from io import StringIO

from rich.console import Console

from shoestring.answers.terminal.outcome import screen
from shoestring.training.session.outcome import Outcome


def text_of(run):
    outcome = Outcome(status="paused", reason="SIGINT", update=0, total_updates=0, metrics={})
    console = Console(file=StringIO(), width=200)
    console.print(screen(outcome, "mine.py", run))
    return console.file.getvalue()


def test_command_that_continues_is_shown_once_the_plan_has_the_options(tmp_path):
    assert text_of(tmp_path) == "paused: SIGINT\nnothing of the run is stored yet: the same command starts it\n"
    (tmp_path / "plan.json").write_text("{}")
    assert f"continue: shoestring train mine.py --run {tmp_path}" in text_of(tmp_path).replace("\n", "")
