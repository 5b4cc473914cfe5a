import json

import pytest

from shoestring.base.errors import UsageError
from shoestring.remote.notebook import session
from shoestring.training.run_directory.stored import StoredState


def make_run(folder, update):
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    StoredState(status="paused", reason="limit", update=update, total_updates=100, next="").write(folder / "state.json")
    return folder


@pytest.fixture
def kaggle(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOESTRING_KAGGLE_ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("place", ["input/notebook/runs/mine", "input/notebooks/me/slug/runs/mine"])
def test_attached_run_that_is_further_is_continued(kaggle, place):
    run = session.run_directory("mine", "kaggle")
    assert session.continue_attached_run(run) is None
    attached = make_run(kaggle / place, 20)
    (attached / "light").mkdir()
    (attached / "light" / "model.safetensors").write_bytes(b"weights")
    (attached / "light" / "code.py").write_text("raise SystemExit")
    (attached / "light" / "link").symlink_to("/etc/passwd")
    assert session.continue_attached_run(run) == attached
    assert sorted(path.name for path in run.rglob("*")) == ["light", "model.safetensors", "plan.json", "state.json"]
    assert session.continue_attached_run(run) is None


def test_a_run_that_was_there_is_never_removed(kaggle):
    run = make_run(session.run_directory("mine", "kaggle"), 5)
    make_run(kaggle / "input" / "old" / "runs" / "mine", 4)
    assert session.continue_attached_run(run) is None
    make_run(kaggle / "input" / "new" / "runs" / "mine", 6)
    session.continue_attached_run(run)
    updates = [json.loads(path.read_text())["update"] for path in sorted(run.parent.glob("*/state.json"))]
    assert sorted(updates) == [5, 6]


def test_a_path_in_an_attached_dataset(kaggle):
    file = kaggle / "input" / "tables" / "a" / "data.csv"
    file.parent.mkdir(parents=True)
    file.touch()
    assert session.attached_path("me/tables:a/data.csv") == file
    assert session.attached_path("me/tables") == kaggle / "input" / "tables"
    for text in ("me/tables:b.csv", "me/tiles"):
        with pytest.raises(UsageError) as error:
            session.attached_path(text)
        assert "Add Input" in error.value.hint


def test_training_ends_before_the_platform_does():
    seconds = session.seconds_left("kaggle-t4x2")
    assert 11 * 3600 < seconds < 12 * 3600 - 299
    assert session.seconds_left("t4") is None


def test_predictions_of_other_weights_have_a_file_of_their_own(kaggle):
    run = session.run_directory("mine", "kaggle")
    first = session.predictions_file(run)
    make_run(run, 7)
    assert session.predictions_file(run) != first and session.predictions_file(run).parent == run.parent


def test_a_page_escapes_itself(tmp_path):
    (tmp_path / "report.html").write_text('<p title="a">b</p>')
    markup = session.show_page(tmp_path / "report.html")._repr_html_()
    assert "&lt;p title=&quot;a&quot;&gt;b&lt;/p&gt;" in markup


def test_drive_of_colab(monkeypatch, tmp_path):
    monkeypatch.setenv("SHOESTRING_CONTENT_ROOT", str(tmp_path))
    assert session.run_directory("mine", "colab") == tmp_path / "drive" / "MyDrive" / "shoestring" / "mine"
