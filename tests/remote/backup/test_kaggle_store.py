"""Copies in datasets of a loopback Kaggle, by the unpatched client: complete or never taken."""

from contextlib import closing

import pytest

from shoestring.base.errors import RunError
from shoestring.remote.backup.commits import names_of
from shoestring.remote.backup.copying import Copier
from shoestring.remote.backup.kaggle_store import KaggleStore
from shoestring.remote.backup.restoring import restore
from shoestring.remote.backup.urls import parse_url
from shoestring.remote.kaggle.client import Client, KaggleError
from tests.loopback_kaggle import Faults, Loopback
from tests.remote.backup.example_runs import RUN_ID, content, save


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Loopback(tmp_path_factory.mktemp("kaggle"), processing_seconds=0.2) as loopback:
        yield loopback


@pytest.fixture
def loopback(shared, monkeypatch):
    shared.datasets.datasets.clear()
    for name, value in shared.environment.items():
        monkeypatch.setenv(name, value)
    return shared


@pytest.fixture
def store(loopback, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    client = Client(timeout_seconds=10, patience_seconds=2, pause_seconds=0.02)
    with closing(KaggleStore("copies", client=client, pause_seconds=0.05)) as store:
        yield store
    assert not list((tmp_path / "temporary").glob("shoestring-*"))


def copier(run, store):
    return Copier(run, store, RUN_ID, on_block=lambda size: None)


def commits_of(loopback, dataset):
    folder = loopback.datasets.content(f"me/{dataset}")
    return [name.update for name in names_of(path.name for path in folder.iterdir())] if folder else []


def with_faults(loopback, **chances):
    object.__setattr__(loopback.dice, "faults", Faults(**chances))


def test_two_datasets_in_turn_have_the_newest_two_copies(loopback, store, tmp_path):
    run = save(tmp_path / "run", 1)
    copying = copier(run, store)
    for update in (1, 2, 3):
        save(run.path, update)
        assert copying.copy().update == update
    assert commits_of(loopback, "copies-a") == [3] and commits_of(loopback, "copies-b") == [2]
    assert [len(dataset.versions) for dataset in loopback.datasets.datasets.values()] == [1, 1]
    assert "restored update 3" in restore(tmp_path / "new", parse_url("kaggle://copies"))
    expected = content(run.path)
    assert {
        name: expected[name] for name in content(tmp_path / "new") if name not in ("backup.json", "lock")
    }.items() <= (content(tmp_path / "new").items())
    token = loopback.settings.token.encode()
    assert not any(token in text for text in content(tmp_path / "new").values())


def test_an_upload_that_fails_leaves_the_copy_before(loopback, store, tmp_path):
    run = save(tmp_path / "run", 1)
    copying = copier(run, store)
    copying.copy()
    save(run.path, 2)
    with_faults(loopback, error_after=1.0)  # the version lands, and 502 is the answer
    with pytest.raises(RunError):
        copying.copy()
    with_faults(loopback)
    assert commits_of(loopback, "copies-a") == [1]
    while copying.copy() is None:
        pass
    assert commits_of(loopback, "copies-a") == [1] and commits_of(loopback, "copies-b") == [2]


def test_a_version_that_lost_a_file_is_not_a_copy_and_is_replaced(loopback, store, tmp_path):
    run = save(tmp_path / "run", 1)
    copier(run, store).copy()
    save(run.path, 2)
    copier(run, store).copy()
    folder = loopback.datasets.content("me/copies-b")
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    largest.unlink()
    assert "restored update 1" in restore(tmp_path / "new", parse_url("kaggle://me/copies"))
    save(run.path, 3)
    copier(run, store).copy()  # not to the dataset with the only complete copy
    assert commits_of(loopback, "copies-a") == [1] and commits_of(loopback, "copies-b") == [3]


def test_a_dataset_that_cannot_be_listed_now_is_not_replaced(loopback, store, tmp_path, monkeypatch):
    run = save(tmp_path / "run", 1)
    copier(run, store).copy()
    save(run.path, 2)
    copier(run, store).copy()
    files = store._client.dataset_files
    monkeypatch.setattr(store._client, "dataset_files", lambda name: None if name.endswith("-b") else files(name))
    save(run.path, 3)
    with pytest.raises(KaggleError, match="copies-b cannot be listed now"):
        copier(run, store).copy()
    monkeypatch.setattr(store._client, "dataset_files", lambda name: [])
    assert store._next_dataset() == "me/copies-a"  # the last copy of this process is in the other one
    monkeypatch.undo()
    assert commits_of(loopback, "copies-a") == [1] and commits_of(loopback, "copies-b") == [2]


def test_nobody_is_signed_in(loopback, monkeypatch, tmp_path):
    monkeypatch.setenv("KAGGLE_API_TOKEN", "KGAT_wrong")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with pytest.raises(KaggleError, match="does not accept the token of KAGGLE_API_TOKEN"):
        KaggleStore("copies")
    assert not list(tmp_path.glob("shoestring-*"))
