"""The page of troubleshooting and the table that sends errors to its headings agree with each other and the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

from shoestring.base.troubleshooting import HEADINGS, PAGE, anchor, explanation

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / PAGE).read_text()
ERRORS = {"UsageError", "DataError", "RunError", "TraceError", "CheckpointError", "KaggleError", "quota_error"}
SHARED_MESSAGES = {
    "explaining": "{}: No space left",
    "explain": "{}: No space left",
    "recipe_errors": "{}: ValueError: 1",
}
"""The functions that make an error of their first argument, and the message that they make of it."""
UNEXPLAINED_SHARE = 0.3
"""The largest share of the messages in the source that may have no heading; most of them are of single recipes."""


def template(node: ast.expr) -> str:
    """Return the text of a message in the source, with an X in place of each value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return template(node.left) + template(node.right)
    return "X"


def messages() -> Iterator[str]:
    """Yield the message of each error that the source makes, with an X in place of each value."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                message = template(node.args[0])
                if node.func.id in ERRORS and message != "X":
                    yield message + ("; it is refreshed X" if node.func.id == "quota_error" else "")
                elif node.func.id in SHARED_MESSAGES:
                    yield SHARED_MESSAGES[node.func.id].format(message)


@pytest.fixture(scope="module")
def headings_by_message():
    return {message: explanation(message) for message in messages()}


def test_page_has_the_headings_of_the_table_and_no_others():
    """The order of the table is that in which a message is compared, and the page's is that of a run."""
    assert sorted(re.findall(r"^### (.+)$", TEXT, re.MULTILINE)) == sorted(HEADINGS)


def test_anchors_are_those_of_the_site():
    assert [anchor(heading) for heading in HEADINGS] == [slugify(heading, "-") for heading in HEADINGS]
    assert len(set(map(anchor, HEADINGS))) == len(HEADINGS)


def test_every_heading_is_reached_by_a_message_of_the_source(headings_by_message):
    unreached = {f"{PAGE}#{anchor(heading)}" for heading in HEADINGS} - set(headings_by_message.values())
    assert unreached == set()


def test_most_messages_have_a_heading(headings_by_message):
    unexplained = [message for message, place in headings_by_message.items() if place is None]
    assert len(headings_by_message) > 300
    assert len(unexplained) <= UNEXPLAINED_SHARE * len(headings_by_message), "\n".join(unexplained)


@pytest.mark.parametrize(
    ("message", "heading"),
    [
        ("legal does not fit on kaggle-t4", "does not fit on kaggle-t4"),
        ("legal does not fit NVIDIA T4", "does not fit on kaggle-t4"),
        ("the checkpoint does not fit the trainer", "the checkpoint belongs to another model or optimizer"),
        (
            "out of memory with the smallest microbatch: CUDA out of memory",
            "CUDA out of memory: nothing is left to try",
        ),
        ("out of memory with a single input: CUDA out of memory", "a single input does not fit into memory"),
        ("the gradient of update 12 is nan", "the loss is not finite"),
        ("/data/plan.json is damaged", "a file of the run has changed since it was written"),
        ("/data/light is damaged", "a file is damaged"),
        ("data() returned other data in process 1: train", "the processes do not have the same data or weights"),
        ("ValueError: mat1 and mat2 shapes cannot be multiplied", "the recipe's code raised an error"),
        ("the checkpoint of update 3 could not be written to a: No space left", "the checkpoint could not be written"),
        ("the training process was ended by SIGKILL", "the training process was ended"),
    ],
)
def test_similar_messages_have_different_headings(message, heading):
    assert explanation(message) == f"{PAGE}#{anchor(heading)}"


@pytest.mark.parametrize(
    ("arguments", "heading"),
    [
        (("plan", "tempral", "--on", "t4"), "there is no recipe of this name"),
        (("plan", "temporal", "--on", "t5"), "there is no target of this name"),
        (("plan", "temporal", "--on", "t4", "--set", "epoch=3"), "invalid options or settings"),
        (("plan", "temporal", "--on", "t4", "--set", "epochs"), "invalid options or settings"),
        (("evaluate", "missing"), "the directory is not a run"),
        (("report", "missing"), "the directory is not a run"),
        (("plan", "missing.py", "--on", "t4"), "there is no recipe of this name"),
        (("plan", "temporal", "--on", "t4", "--config", "missing.toml"), "the configuration file cannot be used"),
        (("kaggle", "status", "--run", "missing"), "the directory has no chain on Kaggle"),
    ],
)
def test_last_line_of_an_error_names_the_section(run_command, tmp_path, monkeypatch, arguments, heading):
    monkeypatch.chdir(tmp_path)
    status, out, err = run_command(*arguments)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == f"see {PAGE}#{anchor(heading)}"


def test_message_about_standard_output_has_no_section():
    """It is printed when little else can be, and says all."""
    assert explanation("standard output could not be written: No space left on device") is None


def test_error_without_a_section_ends_with_its_hint(run_command):
    status, _, err = run_command("check", "--overwrite")
    assert status == 2
    assert err.splitlines()[-1] == "hint: leave it out"
