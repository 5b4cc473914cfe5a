"""The numbers of the documentation's plans are those of their commands, and those of the predictor."""

import json
import re

import pytest
from benchmarks.catalogue import ROOT
from benchmarks.claims import __main__ as command
from benchmarks.claims import comparison
from benchmarks.claims.cases import CASES, CHART_ROWS, LEGAL_ROWS
from benchmarks.claims.comparison import TOLERANCES, differences
from benchmarks.claims.compute import compute
from benchmarks.tables import claims
from benchmarks.tables.markdown import read_result
from benchmarks.tables.quoted import QUOTED, evaluate

COMMITTED = read_result("claims")
RECOMPUTED = ("temporal.lstm", "legal.fp16", "cloud.guide", "memory.mlp")
"""Commands of other kinds that take a few seconds each: of launches, products, convolutions, and an estimate."""
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}


@pytest.mark.parametrize("name", CASES)
def test_every_command_is_valid(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    CASES[name].choose()
    assert CASES[name].command.split()[6::2] == CASES[name].options.split()


def test_committed_values_are_of_these_commands():
    assert {name: case["command"] for name, case in COMMITTED["cases"].items()} == {
        name: case.command for name, case in CASES.items()
    }
    assert COMMITTED["tolerances"] == TOLERANCES
    assert COMMITTED["versions"].keys() == {"torch", "transformers"}


def test_the_predictor_still_gives_the_committed_values():
    """Break the predictor by 5% to see it fail; `make claims` renews the values after a change on purpose."""
    assert differences(compute({name: CASES[name] for name in RECOMPUTED})) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_formula_on_a_page_is_that_of_a_number(page):
    text = PAGES[page]
    assert [match["formula"] for match in QUOTED.finditer(text)] == re.findall(r"<!--=(.+?)-->", text)
    for match in QUOTED.finditer(text):
        evaluate(match["formula"], claims.values())


def test_rows_leave_as_many_for_training_as_the_guides_train_on():
    samples = {name: case["count"]["samples"] for name, case in COMMITTED["cases"].items() if "count" in case}
    assert samples["vqa.guide"] == 9_900
    assert samples["legal.fp16"] == 450_000
    assert samples["legal.complete"] == 4_984 * 225
    assert samples["cloud.guide"] == 1_000
    for charts in CHART_ROWS:
        assert samples[f"question.chart_{charts}_kaggle_t4x2"] == charts
    for files in LEGAL_ROWS:
        assert samples[f"question.legal_{files}_kaggle_t4x2"] == files * 225


def case(**values):
    return {"bytes": {"memory": 1000}, "seconds": {"update": 2.0}, "count": {"sessions": 3}, "text": {}} | values


@pytest.mark.parametrize(
    ("computed", "lines"),
    [
        (case(), []),
        (case(bytes={"memory": 1004}, seconds={"update": 1.991}), []),
        (case(bytes={"memory": 1050}), ["a.memory: 1050 instead of 1000 bytes"]),
        (case(seconds={"update": 1.9}), ["a.update: 1.9 instead of 2.0 seconds"]),
        (case(count={"sessions": 4}), ["a.sessions: 4 instead of 3 count"]),
        (case(text={"verdict": "fits"}), ["a.verdict: fits instead of None text"]),
        (case(seconds={}), ["a.update: None instead of 2.0 seconds"]),
    ],
)
def test_differences(computed, lines, monkeypatch):
    monkeypatch.setattr(comparison, "read_result", lambda _: {"cases": {"a": case()}})
    assert differences({"a": computed}) == lines


def test_check_lists_what_differs_and_fails(monkeypatch, capsys):
    name = "temporal.lstm"
    values = {unit: dict(COMMITTED["cases"][name][unit]) for unit in TOLERANCES}
    monkeypatch.setattr(command, "compute", lambda cases, processes: dict.fromkeys(cases, values))
    assert command.main(["--check", name]) == 0
    values["bytes"]["memory"] *= 1.05
    assert command.main(["--check", name]) == 1
    assert f"{name}.memory: " in capsys.readouterr().out


def test_values_are_written_with_their_commands(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "compute", lambda cases, processes: {name: case() for name in cases})
    assert command.main(["--json", str(tmp_path / "claims.json"), "temporal.lstm"]) == 0
    answer = json.loads((tmp_path / "claims.json").read_text())
    assert answer["cases"]["temporal.lstm"] == {"command": CASES["temporal.lstm"].command, **case()}
