import json

import pytest

from shoestring.answers.watch import following
from shoestring.answers.watch.following import follow
from shoestring.base.errors import UsageError
from tests.answers import runs


def test_following_ends_with_the_run(tmp_path, monkeypatch):
    run = runs.just_started(tmp_path)
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            (run / "state.json").write_text(json.dumps({"status": "finished", "update": 1, "total_updates": 1}))

    monkeypatch.setattr(following.time, "sleep", sleep)
    views = list(follow(run, every_seconds=2.0))
    assert len(views) == 4 and views[-1].status == "finished"
    assert pauses[0] >= 2.0


def test_pauses_are_in_proportion_to_the_work(tmp_path, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(following.time, "monotonic", lambda: float(next(clock)))
    pauses = []
    monkeypatch.setattr(following.time, "sleep", pauses.append)
    views = follow(runs.just_started(tmp_path))
    next(views), next(views)
    assert pauses == [20.0]


def test_page_reloads_itself_until_the_run_is_finished(tmp_path, monkeypatch):
    run, page = runs.just_started(tmp_path / "run"), tmp_path / "live.html"
    monkeypatch.setattr(following.time, "sleep", lambda _: None)
    views = follow(run, page=page)
    next(views)
    first = page.read_text()
    assert '<meta http-equiv="refresh" content="5">' in first and "<script" not in first
    modified = page.stat().st_mtime_ns
    next(views)
    assert page.stat().st_mtime_ns == modified  # nothing has changed
    runs.finished(run)
    assert [view.status for view in views] == ["finished"]
    last = page.read_text()
    assert "3,000 of 3,000" in last and "refresh" not in last
    assert [path.name for path in tmp_path.iterdir()] == ["run", page.name] or len(list(tmp_path.iterdir())) == 2


def test_pages_that_must_not_be_written(tmp_path):
    run = runs.just_started(tmp_path / "run")
    (tmp_path / "train.py").write_text("import torch")
    (tmp_path / "page.html").symlink_to("elsewhere")
    (tmp_path / "link").symlink_to(run)
    for name, problem in {
        "run/live.html": "is in the directory of the run",
        "link/live.html": "is in the directory of the run",
        "train.py": "exists and is not a page",
        "page.html": "exists and is not a page",
        "absent/live.html": "is not a directory",
    }.items():
        with pytest.raises(UsageError, match=problem):
            next(follow(run, page=tmp_path / name))
    assert (tmp_path / "train.py").read_text() == "import torch"
