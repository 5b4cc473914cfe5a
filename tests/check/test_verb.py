"""`shoestring check` and `shoestring evaluate` as a person and as a program meet them."""

import json
import sys
from dataclasses import replace

import pytest

import shoestring
from shoestring import cli
from shoestring.check import preflight, tried
from shoestring.check.facts import Facts
from shoestring.errors import UsageError
from shoestring.runs.evaluate import Evaluated
from tests.check.handmade import DISK, L4, driver, facts


@pytest.fixture
def verb(monkeypatch, capsys):
    """Runs the command line in this process; returns (status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["shoestring", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def here(monkeypatch):
    """Makes the machine that is looked at."""
    return lambda found: monkeypatch.setattr(preflight, "look", lambda *_: found)


def bad() -> Facts:
    return facts(disk=replace(DISK, error="Read-only file system", written_bytes=0))


@pytest.mark.parametrize(
    ("found", "status", "ends"),
    [
        (facts(on="l4", driver=driver(L4), platform=None), 0, "passes"),
        (facts(), 0, "passes with warnings: bf16, attention"),
        (bad(), 1, "fails: disk"),
    ],
)
def test_the_exit_status_and_the_last_line_say_it(verb, here, found, status, ends):
    here(found)
    ended, out, _ = verb("check", "--on", "kaggle-t4")
    assert (ended, out.splitlines()[-1].strip()) == (status, ends)


def test_a_person_reads_each_line_with_what_to_do_below_it(verb, here):
    here(bad())
    _, out, _ = verb("check")
    assert "✗ fail" in out and "✓ pass" in out and "! warn" in out
    assert "Read-only file system" in out and "--run DIR" in out


def test_a_program_reads_json_also_of_a_check_that_fails(verb, here):
    here(bad())
    status, out, _ = verb("check", "--json")
    answer = json.loads(out)
    assert (status, answer["status"], answer["tried"]) == (1, "fail", None)
    assert {"name", "status", "said", "hint"} == set(answer["findings"][0])
    assert [each["name"] for each in answer["findings"] if each["status"] == "fail"] == ["disk"]


def test_a_recipe_that_is_not_tried_says_why_and_in_python_it_is_the_same(here, monkeypatch):
    class Mine:
        def model(self): ...
        def batch(self, size): ...
        def loss(self, model, batch): ...

    here(facts(on="cpu", driver=None))
    monkeypatch.setattr(tried, "planned", lambda *_: (object(), []))
    found = shoestring.check(Mine(), on="cpu")
    assert (found.recipe, found.status) == ("Mine", "warn")
    assert "in this process alone" in found.findings[-1].message


def test_a_wrong_question_is_no_check(verb):
    status, _, err = verb("check", "--on", "moon")
    assert (status, "moon" in err) == (2, True)
    with pytest.raises(UsageError, match="options need a recipe"):
        shoestring.check(epochs=3)


def test_metrics_are_printed_for_a_person_and_for_a_program(verb, monkeypatch):
    found = Evaluated(
        recipe="temporal",
        weights="runs/x/best",
        update=1200,
        device="cpu",
        precision="fp32",
        seconds=2.0,
        metrics={"test": {"loss": 1.25}},
        notes=("data=b.csv, the run has a.csv",),
    )
    monkeypatch.setattr("shoestring.api.evaluate", lambda *_, **__: found)
    status, out, _ = verb("evaluate", "runs/x")
    assert status == 0
    for words in ("of update 1,200", "test: loss 1.25", "the run has a.csv"):
        assert words in out
    _, out, _ = verb("evaluate", "runs/x", "--json")
    assert json.loads(out)["metrics"] == {"test": {"loss": 1.25}}


def test_no_run_is_a_wrong_question(verb, tmp_path):
    status, _, err = verb("evaluate", tmp_path)
    assert (status, "neither a run nor" in err) == (2, True)
