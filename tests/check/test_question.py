"""Verdicts on what was asked, from facts that are made up."""

from dataclasses import replace
from pathlib import Path

from shoestring.check import question
from shoestring.check.facts import Holding, Input, Package
from tests.check.handmade import HOST, facts, line

DATA = Input(
    option="data",
    path=Path("/kaggle/input/prices/bars.csv"),
    problem="it is not there",
    elsewhere=(Path("/kaggle/input/datasets/me/prices/bars.csv"),),
)
NO_INTERNET = {"huggingface.co": "Name or service not known", "pypi.org": "no answer in 2 s"}


def test_a_missing_package_names_its_extra_and_an_old_one_its_version():
    torch = Package(name="torch", least="2.6", installed="2.5.1+cu121")
    peft = Package(name="peft", least="0.15", installed="", extra="chart")
    found = line(facts(packages=(torch, peft)), "packages")
    assert found.status == "fail"
    assert "torch is 2.5.1+cu121, needed is 2.6" in found.message and "peft is not installed" in found.message
    assert "shoestring[chart]" in found.hint
    assert "--no-index" in line(facts(packages=(peft,), internet=NO_INTERNET), "packages").hint


def test_versions_that_were_not_tested_are_told():
    assert line(facts(), "versions").status == "pass"
    later = Package(name="torch", least="2.6", installed="2.14.0")
    found = line(facts(packages=(later,)), "versions")
    assert (found.status, "torch 2.14.0 (tested: 2.13.0)" in found.message) == ("warn", True)


def test_an_input_that_lies_elsewhere_comes_with_the_words_to_set_it():
    found = line(facts(inputs=(DATA,)), "inputs")
    assert (found.status, found.hint) == ("fail", "--set data=/kaggle/input/datasets/me/prices/bars.csv")


def test_an_input_that_is_nowhere_comes_with_what_is_mounted():
    found = line(facts(inputs=(replace(DATA, elsewhere=()),)), "inputs")
    assert (found.status, "/kaggle/input/datasets/me/prices" in found.hint) == ("fail", True)
    assert line(facts(inputs=(replace(DATA, problem=""),)), "inputs").status == "pass"


def test_a_session_without_any_input_is_told():
    assert line(facts(mounted=()), "inputs").status == "warn"
    assert question.inputs(facts(mounted=(), platform=None)) is None


def test_without_internet_it_says_what_cannot_work():
    found = line(facts(internet=NO_INTERNET), "internet")
    assert found.status == "warn"
    assert "hub" in found.message and "pip install" in found.message
    assert "Settings" in found.hint
    assert line(facts(internet=NO_INTERNET, needs_hub=True), "internet").status == "fail"
    assert line(facts(), "internet").status == "pass"


def test_a_switch_that_keeps_the_hub_off_counts_as_no_hub():
    host = replace(HOST, environment={"HF_HUB_OFFLINE": "1"})
    assert line(facts(host=host, needs_hub=True), "internet").status == "fail"
    assert line(facts(host=host), "internet").status == "pass"


def test_a_quota_that_nobody_tells_is_said_to_be_unknown():
    found = line(facts(), "quota")
    assert "30 h" in found.message and "not told" in found.message and "kaggle.com/settings" in found.hint
    assert question.quota(facts(on="t4", platform=None)) is None


def test_an_earlier_sessions_process_that_holds_the_run_is_named():
    run = Path("runs/x")
    zombie = Holding(run=run, holder="pid 77 on here, begun 1790000000", held=True, state="zombie")
    found = line(facts(holding=zombie), "run")
    assert found.status == "fail"
    assert "pid 77" in found.message and "dead" in found.message and "kill 77" in found.hint
    assert line(facts(holding=replace(zombie, held=False, state="")), "run").status == "pass"
    assert question.run(facts(holding=Holding(run=run, holder="", held=False, state=""))) is None
