"""What a session leaves: a check, outcomes, metrics, predictions, exported folders and models."""

import dataclasses
from types import SimpleNamespace

import pytest

from shoestring.answers.outcome import document
from shoestring.answers.renderers.terminal.document import plain
from shoestring.base import display
from shoestring.runs.check.finding import failed, passed, warned
from shoestring.runs.check.preflight import CheckResult
from shoestring.runs.evaluate import Evaluation
from shoestring.runs.export.export import Export
from shoestring.runs.model import Model
from shoestring.runs.predict.loaded import LoadedModel
from shoestring.runs.predict.predict import Predictions
from shoestring.training.session.outcome import Outcome
from tests.answers.markup_text import flat, read

ODD = "<i>odd</i> & 'co'"
METRICS = {"loss": 0.5, "accuracy": 0.75, "accuracy_error": 0.1, "majority_accuracy": 0.6}
CONFUSION = {"labels": ["up_trend", ODD], "counts": [[3, 1], [0, 4]]}


def evaluation(**changes):
    values = {
        "recipe": ODD,
        "weights": "runs/odd/best",
        "update": 1500,
        "device": "cpu",
        "precision": "fp32",
        "seconds": 2.0,
        "metrics": {"validation": METRICS, "test": {**METRICS, "majority_accuracy": 0.4}},
        "evidence": {"test": {"confusion_matrix": CONFUSION}},
        "notes": (ODD,),
        "out": "rows.jsonl",
    }
    return Evaluation(**(values | changes))


def test_check_shows_failures_and_warnings_before_what_passes():
    findings = (passed("disk", "20 GB"), warned("cores", "two", "wait"), failed("GPU", f"no {ODD}", "choose another"))
    result = CheckResult(
        target="kaggle-t4", recipe=ODD, findings=findings, preview="a sample\n  of the data", notes=("a note",)
    )
    texts = read(result._repr_html_())
    assert texts[:2] == [f"Check of this machine for {ODD} on kaggle-t4", "fail"]
    assert texts.index("cores") < texts.index("GPU") < texts.index("What passes (1)") < texts.index("disk")
    assert "choose another" in texts and "a sample\n  of the data" in texts and "a note" in texts
    assert f"no {ODD}" in display.text(result)


def test_text_of_a_notebook_is_that_of_the_terminal():
    formatters = pytest.importorskip("IPython.core.formatters")
    assert formatters.PlainTextFormatter()(evaluation()) == display.text(evaluation()) != repr(evaluation())


def test_outcome_says_how_to_go_on():
    outcome = Outcome(status="paused", reason="interrupted", update=3, total_updates=9, metrics={"test": METRICS})
    text = flat(outcome._repr_html_())
    assert "paused update 3 of 9 · 33.3%" in text and "Paused: interrupted. Run the cell again to go on." in text
    assert "width:33.333%" in outcome._repr_html_()
    assert display.text(outcome).startswith(
        "paused at update 3 of 9: interrupted\ntest, weights of the best epoch: loss 0.5"
    )
    assert "test, last weights: loss 0.5" in display.text(dataclasses.replace(outcome, test_weights="last weights"))
    assert "Run the cell again" not in dataclasses.replace(outcome, status="finished")._repr_html_()
    compared = dataclasses.replace(
        outcome, metrics={"test": {"comparison": {ODD: {"psnr": 30.5}, "copy": {"psnr": 1}}}}
    )
    assert f"psnr {ODD} 30.5 copy 1" in flat(compared._repr_html_())


def test_metrics_have_a_column_for_each_part_and_the_baseline_of_the_last():
    text = flat(evaluation()._repr_html_())
    assert "validation test most frequent class (test) loss 0.5 0.5 – accuracy 0.75 ± 0.1 0.75 ± 0.1 0.4" in text
    assert text.startswith(f"Metrics of {ODD} runs/odd/best, update 1,500 · cpu · fp32 · 2.0 s")
    assert text.endswith(f"rows: rows.jsonl {ODD}") and "accuracy 0.75" in display.text(evaluation())


def test_confusion_is_shaded_by_the_share_of_a_row():
    html = evaluation()._repr_html_()
    assert f"predicted up trend {ODD} up trend 3 1 {ODD} 0 4" in flat(html)
    assert [share for share in ("0.56)", "0.19)", "0.00)", "0.75)") if f"rgba(42,127,212,{share}" not in html] == []
    for matrix in ("no", {"labels": ["a"], "counts": [["x"]]}, {"labels": ["a"] * 13, "counts": [[1] * 13] * 13}):
        assert "Confusion" not in evaluation(evidence={"test": {"confusion_matrix": matrix}})._repr_html_()


def test_predictions_show_rows_and_where_they_are():
    predictions = Predictions(
        status="paused",
        reason=ODD,
        recipe="temporal",
        weights="best",
        rows=1200,
        errors=3,
        out="rows.jsonl",
        device="cpu",
        precision="fp32",
        seconds=4.0,
    )
    text = flat(predictions._repr_html_())
    assert "rows 1,200 3 of them with an error" in text and f"{ODD}; repeat the command to continue" in text
    assert "rows.jsonl" in text and "rows.jsonl" in display.text(predictions)


def test_export_and_model_show_their_weights():
    export = Export(
        format="onnx",
        path=ODD,
        bytes=3 * 2**20,
        files=[f"file{number}" for number in range(30)],
        max_difference=1e-6,
        recipe="temporal",
        update=7,
    )
    text = flat(export._repr_html_())
    assert "temporal as onnx the weights of update 7" in text and ODD in text and "Files (30)" in text
    assert "3.00 MiB" in text and "1e-06" in display.text(export)
    from torch import nn

    run = SimpleNamespace(loaded=SimpleNamespace(name=ODD, recipe=None), weights="best")
    model = LoadedModel(Model(run=run, module=nn.Linear(2, 3), update=7, notes=()), batch=1, notes=("a note",))
    assert flat(model._repr_html_()).startswith(f"Model of {ODD} best, update 7 parameters 9 Linear")
    assert display.text(model) == f"<LoadedModel of {ODD}: the weights in best>\na note"


def text_of(run):
    outcome = Outcome(status="paused", reason="SIGINT", update=0, total_updates=0, metrics={})
    return plain(document(outcome, "mine.py", run), width=200)


def test_command_that_continues_is_shown_once_the_plan_has_the_options(tmp_path):
    assert text_of(tmp_path) == "paused: SIGINT\nnothing of the run is stored yet: the same command starts it"
    (tmp_path / "plan.json").write_text("{}")
    assert f"continue: shoestring train mine.py --run {tmp_path}" in text_of(tmp_path).replace("\n", "")
