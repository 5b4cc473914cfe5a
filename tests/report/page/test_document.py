import json
import re
from html.parser import HTMLParser

import pytest

from shoestring.errors import UsageError
from shoestring.report.page.document import write
from tests.report import runs


def page(run):
    return write(run).read_text()


def words(run):
    """What the page says, without its markup."""
    text = re.sub(r"(?s)<style>.*?</style>|<svg.*?</svg>", "", page(run))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def change(run, file, **fields):
    path = run / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_finished_run_is_told_whole(tmp_path):
    run = runs.finished(tmp_path)
    (run / "best").mkdir()
    said = words(run)
    for expected in (
        "temporal finished",
        "Finished: all updates are done. The best weights are in best/.",
        "3,000 of 3,000",
        "in 4 sessions, 1 of them cut off",
        "Accuracy on test data is 0.8376: better than always answering the most frequent class (0.612).",
        "killed ; 140 updates done again",
        "1,100 to 1,640",
        "stopped by SIGTERM",
        "a T4 has no bf16 units",
        "checkpoints/update-00001640 is damaged: model.safetensors: sha256 differs",
        "out of memory: update 3",
        "torch 2.7.1",
        "memory at its peak 5.74 GiB 5.47 GiB to 6.35 GiB 5.47 GiB",
        "one update 460 ms 380 ms to 620 ms 505 ms (median)",
        "the whole training 23 min 00 s 19 min 00 s to 31 min 00 s 28 min 28 s",
    ):
        assert expected in said
    assert "last weights" not in said


def test_the_same_files_give_the_same_page(tmp_path):
    assert page(runs.finished(tmp_path / "one")) == page(runs.finished(tmp_path / "two"))


def test_the_page_needs_nothing_beside_it(tmp_path):
    text = page(runs.finished(tmp_path))
    assert "<script" not in text
    links = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', text)
    assert {(a or b)[:1] for a, b in links} <= {"#", "d"}, links
    assert [a for a, _ in links if a.startswith("d")] == ["data:,"]
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_no_two_elements_share_an_id_and_every_reference_is_met(tmp_path):
    text = page(runs.finished(tmp_path))
    ids = re.findall(r'id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"""(?:href="|url\()#([^")]*)""", text)) <= set(ids)


def test_no_better_than_the_majority_is_said(tmp_path):
    run = runs.finished(tmp_path)
    test = {"loss": 0.7, "majority_loss": 0.6, "accuracy": 0.61, "majority_accuracy": 0.612}
    change(run, "state.json", metrics={"test": test})
    said = words(run)
    claim = "no better than always answering the most frequent class"
    assert f"Accuracy on test data is 0.61: {claim} (0.612)." in said
    assert f"Loss on test data is 0.7: {claim} (0.6)." in said


def test_what_two_standard_errors_cover_is_not_called_better(tmp_path):
    run = runs.finished(tmp_path)
    test = {"accuracy": 0.54, "accuracy_error": 0.13, "majority_accuracy": 0.31}
    change(run, "state.json", metrics={"test": test})
    assert "Accuracy on test data is 0.54 ± 0.13: within two standard errors of always answering" in words(run)
    change(run, "state.json", metrics={"test": test | {"accuracy_error": 0.1}})
    assert "Accuracy on test data is 0.54 ± 0.1: better than always answering" in words(run)


def test_a_paused_run_says_how_to_go_on(tmp_path):
    run = runs.finished(tmp_path)
    change(
        run, "state.json", status="paused", reason="12 h are over", next="shoestring train temporal --run r", update=9
    )
    said = words(run)
    assert "Paused: 12 h are over. The next session goes on from here: shoestring train temporal --run r" in said
    assert "9 of 3,000" in said


def test_a_failed_run_without_validation(tmp_path):
    said = words(runs.failed(tmp_path))
    assert "Failed: loss is nan." in said and "shoestring train temporal --run runs/temporal" in said
    assert "failed : loss is nan at update 201" in said
    assert "Results" not in said


def test_a_run_that_only_just_started(tmp_path):
    run = runs.just_started(tmp_path)
    text = page(run)
    assert "No progress has been recorded yet." in text
    assert 'aria-label="Sessions on the wall clock"' in text and 'aria-label="Loss' not in text


def test_an_evaluation_may_be_all_there_is(tmp_path):
    run = runs.just_started(tmp_path)
    metrics = {"loss": 0.5, "accuracy": 0.6}
    line = {"time": runs.BEGIN, "session": 1, "event": "evaluation", "update": 1, "part": "validation"}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({**line, "metrics": metrics, "best": True}) + "\n")
    assert 'aria-label="Loss' in page(run)


def test_what_is_missing_or_broken_is_said(tmp_path):
    (tmp_path / "state.json").write_text("{")
    (tmp_path / "plan.json").write_text("[]")
    said = words(tmp_path)
    for expected in (
        "state.json cannot be read",
        "plan.json is no JSON object",
        "events.jsonl is missing",
        "There is no plan in this run's directory".replace("'", "&#x27;"),
        "Nothing in this directory says how the run stands.",
    ):
        assert expected in said


@pytest.mark.parametrize("empty", [{}, {"plan": {}}, {"plan": {"memory": None, "time": 3, "reasons": "x", "disk": []}}])
def test_a_plan_may_lack_anything(tmp_path, empty):
    run = runs.finished(tmp_path)
    (run / "plan.json").write_text(json.dumps(empty))
    assert f"<h1>{tmp_path.name}</h1>" in page(run)


def test_events_may_lack_anything(tmp_path):
    kinds = ("session", "progress", "evaluation", "save", "damaged", "note", "oom", "stop", "unheard")
    lines = [json.dumps({"time": 1.0 + i, "session": 1, "event": kind}) for i, kind in enumerate(kinds)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert "From plan.json, state.json and 9 events" in words(tmp_path)


def test_whatever_comes_from_files_is_escaped(tmp_path):
    bad = '<img src="x" onerror="alert(1)">&$x$'
    run = runs.finished(tmp_path)
    change(
        run, "plan.json", recipe=bad, options={bad: bad}, plan={**runs.PLAN["plan"], "verdict": bad, "reasons": [bad]}
    )
    metrics = {bad: 1.0, "majority_" + bad: 2.0, "nested": {bad: [bad]}}
    change(run, "state.json", status=bad, reason=bad, next=bad, metrics={"test": metrics})
    writer = runs.Writer(run / "events.jsonl")
    writer.now, writer.session = runs.BEGIN + 1e4, 5
    writer.emit("session", update=3000, device=bad, versions={bad: bad})
    writer.emit("evaluation", update=3000, part="validation", metrics=metrics, best=True)
    for event in ("note", "damaged", "oom"):
        writer.emit(event, message=bad, path=bad, file=bad, why=bad)
    writer.emit("stop", update=3000, status=bad, reason=bad)
    text = page(run)
    assert "<img" not in text and text.count("&lt;img") > 15
    seen = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attributes: seen.append((tag, [name for name, _ in attributes]))
    reader.feed(text)
    assert not [tag for tag, names in seen if tag in ("img", "script") or "onerror" in names]


def test_a_directory_that_is_no_run_is_a_question(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match="is no run") as error:
            write(path)
        assert "shoestring train" in error.value.hint
    assert not list(tmp_path.iterdir())
