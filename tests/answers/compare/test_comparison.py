"""Several runs on one page."""

import json
import re

import pytest

import shoestring
from shoestring.answers.compare import curves
from shoestring.answers.compare.compared import read_runs, short_names
from shoestring.answers.compare.document import write
from shoestring.answers.compare.tables import verdict
from shoestring.answers.renderers.page.charts import line_chart
from shoestring.base.errors import UsageError
from tests.answers import runs


@pytest.fixture
def paths(tmp_path):
    """Two runs of one recipe, of which one has another learning rate, and one that failed."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    runs.finished(first), runs.finished(second), runs.failed(third)
    options = {**runs.PLAN["options"], "seed": 7, "schedule": "cosine"}
    plan = {**runs.PLAN["plan"], "settings": {**runs.PLAN["plan"]["settings"], "precision": "fp32"}}
    (second / "plan.json").write_text(json.dumps({**runs.PLAN, "options": options, "plan": plan}))
    return [first, second, third]


def text_of(paths, tmp_path):
    page = write(paths, tmp_path / "page.html").read_text()
    text = re.sub(r"(?s)<style>.*?</style>|<svg.*?</svg>", "", page)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def set_metrics(path, **metrics):
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "metrics": {"test": metrics}}))


def test_three_runs_are_compared(paths, tmp_path):
    text = text_of(paths, tmp_path)
    for expected in (
        "3 runs of temporal",
        "Not finished: third.",
        "first second third",
        "seed 0 7 0",
        "schedule – cosine –",
        "precision fp16 fp32 fp16",
        "options, settings and versions are equal in all runs",
        "time of all sessions 28 min 28 s 28 min 28 s 1 min 40 s",
        "sessions 4, 1 of them killed 4, 1 of them killed 1",
        "updates repeated after kills 140 140 0",
        "peak memory, planned 5.74 GiB 5.74 GiB 5.74 GiB",
        "Not compared, since not all runs have them: loss (validation), accuracy (validation)",
    ):
        assert expected in text, expected
    assert "effective_batch" not in text


def test_curves_have_a_legend(paths, tmp_path):
    page = write(paths, tmp_path / "page.html").read_text()
    figures = {
        re.search('aria-label="([^"]*)"', figure)[1]: re.findall(r"<text[^>]*>([^<]*)</text>", figure)
        for figure in re.findall(r"(?s)<svg.*?</svg>", page)
    }
    assert {"first", "second", "third", "update"} <= set(figures["Loss in training over the updates"])
    assert {"first", "second"} <= set(figures["Loss on validation data over the updates"])
    assert "third" not in figures["Loss on validation data over the updates"]
    assert {"first", "third", "minutes"} <= set(figures["Loss in training over the time of the sessions"])
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")


def test_time_of_a_curve_has_no_pauses(paths):
    (compared,) = read_runs(paths[:1])
    elapsed = [compared.elapsed(event) for event in compared.run.events_of("progress")]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] == pytest.approx(compared.seconds, rel=0.02)
    wall = compared.run.events[-1]["time"] - compared.run.events[0]["time"]
    assert wall > compared.seconds + 2000


def test_recipes_are_different(paths, tmp_path):
    plan = {**runs.PLAN, "recipe": "legal"}
    (paths[1] / "plan.json").write_text(json.dumps(plan))
    set_metrics(paths[0], accuracy=0.5, accuracy_error=0.01, macro_f1=0.4)
    set_metrics(paths[1], accuracy=0.6, accuracy_error=0.01, perplexity=3.0)
    text = text_of(paths[:2], tmp_path)
    assert "2 runs of temporal and legal" in text and "different recipes: only metrics that all of them have" in text
    assert "accuracy (test) 0.5 ± 0.01 0.6 ± 0.01 second best; first worse" in text
    assert "Not compared, since not all runs have them: macro f1 (test), perplexity (test)." in text


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("accuracy", [(0.5, 0.03), (0.6, 0.04)], "b best; a within two standard errors"),
        ("accuracy", [(0.5, 0.03), (0.6, 0.03)], "b best; a worse"),
        ("accuracy", [(0.5, 0.01), (0.6, 0.01), (0.59, 0.01)], "b best; a worse; c within two standard errors"),
        ("loss", [(0.5, 0.01), (0.6, 0.01)], "a best; b worse"),
        ("loss", [(0.5, None), (0.6, 0.01)], "a best; errors are unknown"),
        ("accuracy", [(0.5, 0.01), (0.5, 0.01)], "equal"),
        ("accuracy", [(0.5, 0.01), (0.5, 0.01), (0.1, 0.01)], "a, b best; c worse"),
    ],
)
def test_verdict(name, values, expected):
    columns = [{name: value, **({} if error is None else {name + "_error": error})} for value, error in values]
    assert verdict(name, list("abc")[: len(values)], columns) == expected


def test_names_distinguish(tmp_path):
    assert short_names([tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "c"]) == ["a/run", "b/run", "c"]
    assert short_names([tmp_path, tmp_path / "deeper" / tmp_path.name])[1] == f"deeper/{tmp_path.name}"


def test_runs_without_progress(tmp_path):
    paths = [runs.just_started(tmp_path / name) for name in "ab"]
    text = text_of(paths, tmp_path)
    assert "No progress has been recorded yet." in text and "None: " in text
    assert "Metrics" not in text


def test_more_runs_than_colors_differ_by_their_lines(tmp_path):
    compared = read_runs([runs.just_started(tmp_path / str(index)) for index in range(8)])
    assert len({(entry.color, entry.line) for entry in compared}) == 8
    assert line_chart(curves.training_loss(compared)) == ""


def test_same_run_twice_and_directories_without_runs(paths, tmp_path):
    (tmp_path / "link").symlink_to(paths[0])
    for given in ([paths[0], paths[0]], [*paths, tmp_path / "link"]):
        with pytest.raises(UsageError, match="the same run is given twice"):
            write(given, tmp_path / "page.html")
    with pytest.raises(UsageError, match=r"there is no directory .*absent"):
        write([paths[0], tmp_path / "absent"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_function_takes_several_runs(paths, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(shoestring.report(*paths)) == "comparison.html"
    assert shoestring.report(paths[0], out="one.html").read_text().count("<h1>temporal</h1>") == 1
    assert not (paths[0] / "report.html").exists()
    with pytest.raises(UsageError, match="which is only read"):
        shoestring.report(*paths, out=paths[0] / "report.html")
    (tmp_path / "train.py").write_text("import torch")
    with pytest.raises(UsageError, match="is not a page"):
        shoestring.report(paths[0], out="train.py")


def test_text_from_files_is_escaped(paths, tmp_path):
    unsafe = '<img src="x">&$x$'
    plan = {**runs.PLAN, "recipe": unsafe, "options": {unsafe: unsafe}}
    (paths[1] / "plan.json").write_text(json.dumps(plan))
    set_metrics(paths[0], **{unsafe: 1.0})
    set_metrics(paths[1], **{unsafe: 2.0})
    page = write(paths[:2], tmp_path / "page.html").read_text()
    assert "<img" not in page and page.count("&lt;img") > 4
