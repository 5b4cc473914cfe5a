import json
import re
from html.parser import HTMLParser

import pytest

from shoestring.answers.report.document import write
from shoestring.base.errors import UsageError
from tests.answers import runs


def page(run):
    return write(run).read_text()


def page_text(run):
    """Return the text of the page without its markup."""
    text = re.sub(r"(?s)<style>.*?</style>|<svg.*?</svg>", "", page(run))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def change(run, file, **fields):
    path = run / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_finished_run_is_shown_completely(tmp_path):
    run = runs.finished(tmp_path)
    (run / "best").mkdir()
    text = page_text(run)
    for expected in (
        "temporal finished",
        "Finished: all updates are done. The best weights are in best/.",
        "3,000 of 3,000",
        "in 4 sessions, 1 of them killed",
        "Accuracy on test data is 0.8376: better than always predicting the most frequent class (0.612).",
        "killed ; 140 updates repeated",
        "1,100 to 1,640",
        "stopped by SIGTERM",
        "a T4 has no bf16 units",
        "checkpoints/update-00001640 is damaged: model.safetensors: sha256 differs",
        "out of memory: update 3",
        "torch 2.7.1",
        "peak memory 5.74 GiB 5.47 GiB to 6.35 GiB 5.47 GiB",
        "one update 460 ms 380 ms to 620 ms 505 ms (median)",
        "whole run 23 min 00 s 19 min 00 s to 31 min 00 s 28 min 28 s",
    ):
        assert expected in text
    assert "last weights" not in text


def test_same_files_give_the_same_page(tmp_path):
    assert page(runs.finished(tmp_path / "one")) == page(runs.finished(tmp_path / "two"))


def test_page_is_self_contained(tmp_path):
    text = page(runs.finished(tmp_path))
    assert "<script" not in text
    links = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', text)
    assert {(a or b)[:1] for a, b in links} <= {"#", "d"}, links
    assert [a.partition(",")[0] for a, _ in links if a.startswith("d")] == ["data:", "data:image/png;base64"]
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_ids_are_unique_and_references_resolve(tmp_path):
    text = page(runs.finished(tmp_path))
    ids = re.findall(r'id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"""(?:href="|url\()#([^")]*)""", text)) <= set(ids)


def test_metric_below_the_majority_baseline_is_no_better(tmp_path):
    run = runs.finished(tmp_path)
    test = {"loss": 0.7, "majority_loss": 0.6, "accuracy": 0.61, "majority_accuracy": 0.612}
    change(run, "state.json", metrics={"test": test})
    text = page_text(run)
    claim = "no better than always predicting the most frequent class"
    assert f"Accuracy on test data is 0.61: {claim} (0.612)." in text
    assert f"Loss on test data is 0.7: {claim} (0.6)." in text


def test_difference_within_two_standard_errors_is_not_better(tmp_path):
    run = runs.finished(tmp_path)
    test = {"accuracy": 0.54, "accuracy_error": 0.13, "majority_accuracy": 0.31}
    change(run, "state.json", metrics={"test": test})
    assert "Accuracy on test data is 0.54 ± 0.13: within two standard errors of always predicting" in page_text(run)
    change(run, "state.json", metrics={"test": test | {"accuracy_error": 0.1}})
    assert "Accuracy on test data is 0.54 ± 0.1: better than always predicting" in page_text(run)


def test_paused_run_shows_the_next_command(tmp_path):
    run = runs.finished(tmp_path)
    change(
        run, "state.json", status="paused", reason="12 h are over", next="shoestring train temporal --run r", update=9
    )
    text = page_text(run)
    assert "Paused: 12 h are over. Continue in the next session with: shoestring train temporal --run r" in text
    assert "9 of 3,000" in text


def test_failed_run_without_validation_data(tmp_path):
    text = page_text(runs.failed(tmp_path))
    assert "Failed: loss is nan." in text and "shoestring train temporal --run runs/temporal" in text
    assert "failed : loss is nan at update 201" in text
    assert "Results" not in text


def test_run_that_just_started(tmp_path):
    run = runs.just_started(tmp_path)
    text = page(run)
    assert "No progress has been recorded yet." in text
    assert ">processes</th>" in text
    assert 'aria-label="Sessions on the wall clock"' in text and 'aria-label="Loss' not in text


def test_evaluation_without_progress_is_drawn(tmp_path):
    run = runs.just_started(tmp_path)
    metrics = {"loss": 0.5, "accuracy": 0.6}
    line = {"time": runs.BEGIN, "session": 1, "event": "evaluation", "update": 1, "part": "validation"}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({**line, "metrics": metrics, "best": True}) + "\n")
    assert 'aria-label="Loss' in page(run)


def test_missing_or_broken_files_are_reported(tmp_path):
    (tmp_path / "state.json").write_text("{")
    (tmp_path / "plan.json").write_text("[]")
    text = page_text(tmp_path)
    for expected in (
        "state.json cannot be read",
        "plan.json is not a JSON object",
        "events.jsonl is missing",
        "There is no plan in this run's directory".replace("'", "&#x27;"),
        "The status of the run is unknown: state.json contains no valid status.",
    ):
        assert expected in text


@pytest.mark.parametrize(
    "partial", [{}, {"plan": {}}, {"plan": {"memory": None, "time": 3, "reasons": "x", "disk": []}}]
)
def test_plan_fields_may_be_missing(tmp_path, partial):
    run = runs.finished(tmp_path)
    (run / "plan.json").write_text(json.dumps(partial))
    assert f"<h1>{tmp_path.name}</h1>" in page(run)


def test_event_fields_may_be_missing(tmp_path):
    kinds = ("session", "progress", "evaluation", "save", "damaged", "note", "oom", "stop", "unknown")
    lines = [json.dumps({"time": 1.0 + i, "session": 1, "event": kind}) for i, kind in enumerate(kinds)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert "Sources: plan.json, state.json and 9 events" in page_text(tmp_path)


def test_text_from_files_is_escaped(tmp_path):
    unsafe = '<img src="x" onerror="alert(1)">&$x$'
    run = runs.finished(tmp_path)
    change(
        run,
        "plan.json",
        recipe=unsafe,
        options={unsafe: unsafe},
        plan={**runs.PLAN["plan"], "verdict": unsafe, "reasons": [unsafe]},
    )
    evidence = {
        "confusion_matrix": {"labels": [unsafe], "counts": [[1]]},
        "histograms": {unsafe: {"edges": [0, 1], "counts": [1]}},
        "examples": [{"group": unsafe, "name": unsafe, "scores": {unsafe: 1}, "texts": {unsafe: unsafe}}],
        "samples": [{"name": unsafe, "scores": {unsafe: 1}}],
    }
    metrics = {unsafe: 1.0, "majority_" + unsafe: 2.0, "nested": {unsafe: [unsafe]}}
    change(run, "state.json", status=unsafe, reason=unsafe, next=unsafe, metrics={"test": metrics})
    writer = runs.Writer(run / "events.jsonl")
    writer.time, writer.session = runs.BEGIN + 1e4, 5
    writer.emit("session", update=3000, device=unsafe, versions={unsafe: unsafe})
    writer.emit("evaluation", update=3000, part="validation", metrics=metrics, best=True)
    writer.emit("evaluation", update=3000, part="test", metrics=metrics, evidence=evidence)
    for event in ("note", "damaged", "oom"):
        writer.emit(event, message=unsafe, path=unsafe, file=unsafe, why=unsafe)
    writer.emit("stop", update=3000, status=unsafe, reason=unsafe)
    text = page(run)
    text = text.replace('<img src="data:image/png;base64,', "")
    assert "<img" not in text and text.count("&lt;img") > 15
    tags = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attributes: tags.append((tag, [name for name, _ in attributes]))
    reader.feed(text)
    assert not [tag for tag, names in tags if tag in ("img", "script") or "onerror" in names]


def test_directory_without_a_run_is_a_usage_error(tmp_path):
    for path, message in ((tmp_path, "is not a run directory"), (tmp_path / "absent", "there is no directory")):
        with pytest.raises(UsageError, match=message) as error:
            write(path)
        assert "shoestring train" in error.value.hint
    assert not list(tmp_path.iterdir())
