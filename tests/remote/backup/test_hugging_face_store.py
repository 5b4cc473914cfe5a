"""Copies on the Hugging Face hub: its own client, and a stand-in for the hub on this machine."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from huggingface_hub import constants, file_download

from shoestring.base.errors import RunError
from shoestring.remote.backup import hugging_face_store
from shoestring.remote.backup.copying import Copier
from shoestring.remote.backup.hugging_face_store import HuggingFaceStore
from shoestring.remote.backup.restoring import restore
from shoestring.remote.backup.urls import parse_url
from shoestring.training.monitor import events
from tests.remote.backup.example_runs import RUN_ID, content, save
from tests.remote.backup.loopback_hub import SIGNATURE, TOKEN, Hub

PLACE = "datasets/me/copies/runs/one"
URL = f"hf://{PLACE}"
REPOSITORY = "datasets/me/copies"

# The client uploads by an argument of httpx that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that this process and its children reach."""
    hub = Hub()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # The client has read its environment when it was imported.
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)  # before 1.0
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the attempts of the client
    yield hub
    hub.close()


@pytest.fixture
def run(tmp_path):
    return save(tmp_path / "run", 1)


def copier(run):
    return Copier(run, HuggingFaceStore(PLACE), RUN_ID, on_block=lambda size: None)


def restored(run):
    new = run.path.with_name("new")
    return restore(new, parse_url(URL, "--from")), new


def objects(hub):
    return {path for path in hub.repositories.get(REPOSITORY, {}) if "/objects/" in path}


def puts(hub):
    return [line for line in hub.requests if line.startswith("PUT")]


def object_of(run, path):
    return f"runs/one/objects/{hashlib.sha256((run.path / path).read_bytes()).hexdigest()}"


def test_a_copy_is_restored(hub, run):
    first = copier(run).copy()
    assert first.sent_bytes == first.bytes
    assert copier(run).copy().sent_bytes == 0  # of the next session, which reads the objects
    message, new = restored(run)
    assert message.startswith(f"restored update 1 from {URL}")
    files = content(new)
    assert files.pop("backup.json") and files == content(run.path) | {"lock": b""}


def test_the_repository_is_private(hub, run):
    copier(run).copy()
    assert hub.private == {REPOSITORY: True}


def test_nothing_is_part_of_the_repository_before_the_commit(hub, run):
    """A machine that is lost after its uploads has not made a copy."""
    store = HuggingFaceStore(PLACE)
    store.write("objects/1", [b"\0" * 5000])
    store.write("objects/2", [b"text"])
    assert len(hub.contents) == 1 and not objects(hub)
    assert HuggingFaceStore(PLACE).sizes("objects") == {}
    assert store.sizes("objects") == {"1": 5000, "2": 4}
    store._forget()


def test_two_checkpoints_stay_and_the_next_commit_removes_others(hub, run):
    copying = copier(run)
    copying.copy()
    weights = object_of(run, "checkpoints/update-00000001/model.safetensors")
    for update in (2, 3, 4):
        save(run.path, update)
        copying.copy()
        assert (weights in objects(hub)) == (update < 4)
    store = HuggingFaceStore(PLACE)
    assert [name[9:24] for name in sorted(store.sizes("commits"))] == [
        "update-00000002",
        "update-00000003",
        "update-00000004",
    ]
    assert len(hub.commits) == 4  # one for each copy


def test_a_removed_object_that_is_needed_again_is_sent_again(hub):
    store = HuggingFaceStore(PLACE)
    store.write("objects/1", [b"content"])
    store.write("commits/1.json", [b"{}"])
    store.remove("objects/1")
    assert store.sizes("objects") == {}
    store.write("objects/1", [b"content"])
    store.write("commits/2.json", [b"{}"])
    assert HuggingFaceStore(PLACE).sizes("objects") == {"1": 7}


def test_a_commit_that_landed_unseen_does_not_break_the_next_copy(hub, run):
    copying = copier(run)
    for update in (1, 2, 3):
        save(run.path, update)
        copying.copy()
    save(run.path, 4)
    hub.faults.append(("commit", "landed"))  # it removes files too, which can be removed once
    with pytest.raises(ConnectionError, match="502"):
        copying.copy()
    assert copying.copy().sent_bytes == 0
    save(run.path, 5)
    copying.copy()
    assert restored(run)[0].startswith("restored update 5 ")
    assert "damaged" not in restored(run)[0]


def test_what_a_failed_commit_has_not_made_part_of_the_repository_is_sent_again(hub, run):
    copying = copier(run)
    hub.faults.append(("commit", "503"))
    with pytest.raises(ConnectionError, match="503"):
        copying.copy()
    assert not objects(hub)
    uploads = puts(hub)
    assert uploads and copying.copy().sent_bytes > 0
    assert puts(hub) == uploads  # the hub has their content
    assert restored(run)[0].startswith("restored update 1 ")


def test_an_interrupted_upload_is_never_taken(hub, run):
    copying = copier(run)
    copying.copy()
    save(run.path, 2)
    hub.faults += [("storage", "broken")] * 20
    with pytest.raises(ConnectionError, match=r"Server disconnected|Connection aborted"):
        copying.copy()
    hub.faults.clear()
    assert restored(run)[0].startswith("restored update 1 ")
    assert copying.copy().update == 2


def test_a_large_object_is_uploaded_in_parts_and_reported(hub):
    """The file is read by the block, and what the client reads is progress."""
    sizes, data = [], os.urandom(5 << 20)
    store = HuggingFaceStore(PLACE, on_block=sizes.append)
    store.write("objects/1", [data[:100], data[100:]])
    assert len(puts(hub)) == 5
    assert sum(sizes) >= len(data) and max(sizes) <= 1 << 20
    store.write("commits/1.json", [b"{}"])
    assert b"".join(store.blocks("objects/1", len(data))) == data
    with pytest.raises(ValueError, match="more than 9 bytes"):
        list(store.blocks("objects/1", 9))


@pytest.mark.parametrize("faults", [[("resolve", "503")], [("storage", "broken")], [("storage", "broken")] * 3])
def test_an_interrupted_download_is_continued(hub, monkeypatch, faults):
    monkeypatch.setattr(hugging_face_store, "_BLOCK_BYTES", 1000)
    store, data = HuggingFaceStore(PLACE), os.urandom(50_000)
    store.write("objects/1", [data])
    store.write("commits/1.json", [b"{}"])
    hub.faults += faults
    assert b"".join(store.blocks("objects/1", len(data))) == data
    assert not hub.faults


def test_a_file_that_is_not_there(hub):
    store = HuggingFaceStore(PLACE)
    with pytest.raises(FileNotFoundError):
        list(store.blocks("commits/1.json", 9))
    store.write("commits/1.json", [b"{}"])
    with pytest.raises(FileNotFoundError):
        list(store.blocks("commits/2.json", 9))
    assert store.sizes("objects") == {}


def test_a_damaged_object_is_named_and_the_copy_before_is_taken(hub, run, capsys):
    copying = copier(run)
    copying.copy()
    save(run.path, 2)
    copying.copy()
    path = object_of(run, "checkpoints/update-00000002/model.safetensors")
    hub.repositories[REPOSITORY][path] = hub.repositories[REPOSITORY][path][:-1] + b"x"
    assert restored(run)[0].startswith("restored update 1 ")
    notes = capsys.readouterr().err
    assert f"damaged in {URL}: " in notes and "update-00000002/model.safetensors" in notes


@pytest.mark.parametrize(
    ("token", "message"),
    [("hf_wrong_token_of_a_person", "does not accept the token"), ("", "the hub needs a token")],
)
def test_a_wrong_token_is_one_clear_error(hub, run, monkeypatch, token, message):
    copier(run).copy()
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(RunError, match=message) as error:
        restored(run)
    assert error.value.message.startswith(f"--from {URL} cannot be read: ") and "\n" not in error.value.message
    assert "credentials" in error.value.hint
    assert not run.path.with_name("new").exists()


def test_a_token_that_may_only_read(hub, run):
    hub.faults.append(("create", "403"))
    with pytest.raises(PermissionError, match="must be allowed to write"):
        copier(run).copy()


def backup_process(run, until, **environment):
    """Copy a run in the process that a session starts, until it prints `until`. Returns all that it has written."""
    command = [sys.executable, "-P", "-m", "shoestring.remote.backup", "copy", str(run.path), URL, RUN_ID]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=os.environ | environment) as process:
        line = b"{}"
        while line and until not in json.loads(line):
            line = process.stdout.readline()
        return (line + b"".join(process.communicate())).decode()


def failures(run):
    return [event["why"] for event in events.read(run.events_file) if event["event"] == "backup_failed"]


def test_a_wrong_token_is_one_event(hub, run):
    messages = backup_process(run, "ready", HF_TOKEN="hf_wrong_token_of_a_person")
    assert len(failures(run)) == 1 and "the hub does not accept the token" in failures(run)[0]
    assert "hf_wrong" not in messages + run.events_file.read_text()


def test_a_request_that_hangs_is_given_up_and_no_secret_is_written(hub, run):
    hub.faults += [("batch", "hang"), ("storage", "503")]  # the client tries again after the second one
    messages = backup_process(run, "copied", SHOESTRING_BACKUP_SILENCE="1.6")
    assert failures(run) and all("no answer for 2 s" in failure for failure in failures(run))
    written = [messages.encode(), *content(run.path).values(), *hub.contents.values(), *map(str.encode, hub.commits)]
    written += hub.repositories[REPOSITORY].values()
    assert not [data for data in written if TOKEN.encode() in data or SIGNATURE.encode() in data]
    assert restored(run)[0].startswith("restored update 1 ")
