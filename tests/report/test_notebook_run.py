"""What a notebook shows of a run: a real one, and texts that are no markup."""

import dataclasses

import pytest

import shoestring
from shoestring import display
from shoestring.check.finding import Finding
from shoestring.check.preflight import CheckResult
from shoestring.session.outcome import Outcome


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "temporal"
    shoestring.train("temporal", run=folder, size="tiny", epochs=4)
    return folder


def test_a_run_is_shown_with_its_loss_metrics_and_events(run):
    view = next(iter(shoestring.watch(run)))
    markup = view._repr_html_()
    assert "<svg" in markup and "training loss" in markup and "validation loss" in markup
    assert "update 12 of 12 · 100% · epoch 4" in markup and "finished" in markup
    assert "<script" not in markup and "http" not in markup
    assert "update 12 of 12" in display.text(view)
    broken = dataclasses.replace(view, recipe="<b>bold</b>", problems=["<script>"])
    assert "<script" not in broken._repr_html_() and "&lt;b&gt;bold" in broken._repr_html_()


def test_metrics_and_predictions_are_shown(run, tmp_path):
    evaluation = shoestring.evaluate(run)
    assert "validation" in evaluation._repr_html_() and "accuracy" in display.text(evaluation)
    predictions = shoestring.predict(run, bars="latest", out=tmp_path / "rows.jsonl")
    assert "rows.jsonl" in predictions._repr_html_() and "rows.jsonl" in display.text(predictions)


def test_an_outcome_says_how_to_go_on():
    outcome = Outcome(status="paused", reason="interrupted", update=3, total_updates=9, metrics={"test": {"loss": 0.5}})
    assert "Run the cell again" in outcome._repr_html_() and "update 3 of 9" in outcome._repr_html_()
    assert display.text(outcome) == "paused at update 3 of 9: interrupted\ntest: loss 0.5"
    assert "Run the cell again" not in dataclasses.replace(outcome, status="finished")._repr_html_()


def test_a_check_shows_findings_with_hints():
    findings = (
        Finding(name="GPU", status="fail", message="there is <no> GPU", hint="choose another accelerator"),
        Finding(name="disk", status="pass", message="20 GB"),
    )
    result = CheckResult(target="kaggle-t4", recipe="temporal", findings=findings)
    markup = result._repr_html_()
    assert "choose another accelerator" in markup and "&lt;no&gt;" in markup and "fail" in markup
    assert "there is <no> GPU" in display.text(result)
