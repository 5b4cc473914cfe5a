"""The output and exit status of `shoestring check` and `shoestring evaluate`, as text and as JSON."""

import json
from dataclasses import replace

import pytest

import shoestring
from shoestring.base.errors import UsageError
from shoestring.base.packages.requirements import Package
from shoestring.runs.check import preflight, trial_findings
from shoestring.runs.check.facts import Facts
from shoestring.runs.evaluate import Evaluation
from tests.runs.check.sample_facts import DISK, L4, make_driver, make_facts


@pytest.fixture
def set_facts(monkeypatch):
    """A function that sets the facts which a check collects."""
    return lambda facts: monkeypatch.setattr(preflight, "collect_facts", lambda *_: facts)


def read_only_disk_facts() -> Facts:
    return make_facts(disk=replace(DISK, error="Read-only file system", written_bytes=0))


@pytest.mark.parametrize(
    ("facts", "status", "last_line"),
    [
        (make_facts(on="l4", driver=make_driver(L4), platform=None), 0, "passes"),
        (make_facts(), 0, "passes with warnings: bf16, attention"),
        (read_only_disk_facts(), 1, "fails: disk"),
    ],
)
def test_exit_status_and_last_line_of_a_check(run_command, set_facts, facts, status, last_line):
    set_facts(facts)
    exit_status, out, _ = run_command("check", "--on", "kaggle-t4")
    assert (exit_status, out.splitlines()[-1].strip()) == (status, last_line)


def test_text_output_has_a_hint_below_each_finding(run_command, set_facts):
    set_facts(read_only_disk_facts())
    _, out, _ = run_command("check")
    assert "✗ fail" in out and "✓ pass" in out and "! warn" in out
    assert "Read-only file system" in out and "--run DIR" in out


def test_json_output_of_a_failed_check(run_command, set_facts):
    set_facts(read_only_disk_facts())
    status, out, _ = run_command("check", "--json")
    answer = json.loads(out)
    assert (status, answer["status"], answer["tried"]) == (1, "fail", None)
    assert {"name", "status", "said", "hint"} == set(answer["findings"][0])
    assert [finding["name"] for finding in answer["findings"] if finding["status"] == "fail"] == ["disk"]


def test_json_says_what_the_image_of_another_platform_lacks(run_command, set_facts):
    bitsandbytes = Package(name="bitsandbytes", minimum="0.45", installed="0.50.2", extra="bitsandbytes")
    set_facts(make_facts(platform=None, packages=(bitsandbytes,)))
    image = json.loads(run_command("check", "--json")[1])["image"]
    assert ([package["name"] for package in image["lacks"]], image["python"]) == (["bitsandbytes"], "3.12")
    set_facts(make_facts(packages=(bitsandbytes,)))
    assert json.loads(run_command("check", "--json")[1])["image"] is None


def test_recipe_without_a_file_is_not_tried(set_facts, monkeypatch):
    class Mine:
        def model(self): ...
        def batch(self, size): ...
        def loss(self, model, batch): ...

    set_facts(make_facts(on="cpu", driver=None))
    monkeypatch.setattr(trial_findings, "plan_trial", lambda *_: (object(), []))
    result = shoestring.check(Mine(), on="cpu")
    assert (result.recipe, result.status) == ("Mine", "warn")
    assert "the recipe exists only in this process" in result.findings[-1].message


def test_invalid_usage_of_check(run_command):
    status, _, err = run_command("check", "--on", "moon")
    assert (status, "moon" in err) == (2, True)
    with pytest.raises(UsageError, match="options need a recipe"):
        shoestring.check(epochs=3)


def test_metrics_are_printed_as_text_and_json(run_command, monkeypatch):
    evaluation = Evaluation(
        recipe="temporal",
        weights="runs/x/best",
        update=1200,
        device="cpu",
        precision="fp32",
        seconds=2.0,
        metrics={"test": {"loss": 1.25}},
        notes=("data=b.csv, the run has a.csv",),
    )
    monkeypatch.setattr("shoestring.api.evaluate", lambda *_, **__: evaluation)
    status, out, _ = run_command("evaluate", "runs/x")
    assert status == 0
    for text in ("of update 1,200", "test: loss 1.25", "the run has a.csv"):
        assert text in out
    _, out, _ = run_command("evaluate", "runs/x", "--json")
    assert json.loads(out)["metrics"] == {"test": {"loss": 1.25}}


def test_evaluating_no_run_is_invalid_usage(run_command, tmp_path):
    status, _, err = run_command("evaluate", tmp_path)
    assert (status, "neither a run nor" in err) == (2, True)
