"""The unpatched official client in its process: answers, refusals, hangs, and no credential anywhere."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from shoestring.remote.kaggle import client_process
from shoestring.remote.kaggle.client import Client, KaggleError, kind_of
from shoestring.remote.kaggle.upload import dataset_metadata
from tests.remote.kaggle.answers import TOKEN, Answers

KERNEL = "me/run-abcdef-a"


@pytest.fixture(scope="module")
def server():
    server = Answers({})
    yield server
    server.close()


@pytest.fixture(scope="module")
def shared_client(server):
    with Client(environment=server.environment, timeout_seconds=10, patience_seconds=2, pause_seconds=0.01) as client:
        yield client


@pytest.fixture
def client(server, shared_client):
    del server.requests[:]
    return shared_client


def refuse(code, message):
    return code, {"code": code, "message": message}


def test_account_and_quota(client, server):
    server.answers["GetAcceleratorQuotaStatistics"] = {
        "quotaRefreshTime": "2026-12-01T00:00:00Z",
        "gpuQuota": {"timeUsed": "3600s", "totalTimeAllowed": "108000s"},
    }
    assert client.account() == "me"
    quota = client.quota()
    assert (quota["used"], quota["total"], quota["reserved"]) == (3600, 108000, 0)
    assert quota["refresh"] == "2026-12-01 00:00 UTC"


def test_a_push_has_the_body_that_a_dry_run_shows(client, server, tmp_path):
    from shoestring.remote.kaggle.chain_file import SessionRecord
    from shoestring.remote.kaggle.job import write_kernel
    from shoestring.remote.kaggle.package import dry_run
    from tests.remote.kaggle.memory_kaggle import JOB, make_state

    state = make_state()
    session = SessionRecord(number=1, nonce="0" * 32, slug="run-abcdef-a", limit_seconds=100.0)
    write_kernel(tmp_path, state, session, JOB)
    server.answers["SaveKernel"] = {"ref": KERNEL, "versionNumber": 3, "url": "u"}
    assert client.push(tmp_path, seconds=100, accelerator="NvidiaTeslaT4")["version"] == 3
    (body,) = [body for method, body, _ in server.requests if method == "SaveKernel"]
    shown = dry_run(state, JOB)["requests"][1]["body"]
    assert {**{name: body[name] for name in shown if name in body}, "text": shown["text"]} == {
        name: value for name, value in shown.items() if name in body
    }
    assert set(shown) - set(body) <= {"kernelDataSources", "enableTpu"}  # empty ones are not sent
    assert body["isPrivate"] is True and shown["text"]["bytes"] == len(body["text"].encode())


def test_temporary_failures_are_repeated_and_a_push_is_not(client, server, tmp_path):
    answers = iter([(502, b"<html>"), (200, b"<html>busy"), refuse(429, "slow down"), {"status": "RUNNING"}])
    server.answers["GetKernelSessionStatus"] = lambda _: next(answers)
    answer = client.status(KERNEL)
    assert abs(answer.pop("time") - time.time()) < 60  # by the clock of the server, which is this machine
    assert answer == {"status": "running", "message": ""}
    for name in ("script.py", "kernel-metadata.json"):
        metadata = {"id": KERNEL, "title": "run-abcdef-a", "language": "python", "kernel_type": "script"}
        (tmp_path / name).write_text(json.dumps({**metadata, "code_file": "script.py"}))
    for answer, kind in (
        ((502, b""), "temporary"),
        ({"error": "Maximum batch GPU session count of 2 reached."}, "places"),
        ({"error": "Maximum weekly GPU quota of 30.00 hours reached."}, "quota"),
        (refuse(400, "the title is taken"), "rejected"),
    ):
        server.answers["SaveKernel"] = answer
        del server.requests[:]
        with pytest.raises(KaggleError) as error:
            client.push(tmp_path, seconds=100)
        assert error.value.kind == kind and error.value.hint
        assert [method for method, *_ in server.requests].count("SaveKernel") == 1
    assert "the title is taken" in error.value.message


def test_what_does_not_exist_is_none(client, server):
    server.answers["GetKernel"] = refuse(404, "not found")
    server.answers["ListDatasetFiles"] = refuse(403, "Permission 'datasets.get' was denied")
    assert client.source(KERNEL) is None and client.dataset_files("me/nothing") is None


def test_files_of_a_dataset_are_listed_page_by_page_as_far_as_needed(client, server):
    def page(body):
        start, size = int(body.get("pageToken") or 0), body["pageSize"]
        files = [{"name": f"a/{number}.txt", "totalBytes": number} for number in range(start, min(500, start + size))]
        return {"datasetFiles": files, **({"nextPageToken": str(start + size)} if start + size < 500 else {})}

    server.answers["ListDatasetFiles"] = page
    for limits, count, requests in (
        ({}, 500, 3),
        ({"max_files": 0}, 200, 1),
        ({"max_files": 300}, 400, 2),
        ({"path": "a/7.txt"}, 200, 1),
        ({"path": "b", "max_files": 1000}, 500, 3),
    ):
        del server.requests[:]
        files = client.dataset_files("me/law", **limits)
        assert (len(files), files[9]) == (count, {"name": "a/9.txt", "bytes": 9})
        assert [method for method, *_ in server.requests].count("ListDatasetFiles") == requests, limits


def test_outputs_are_downloaded_by_name_over_pages(client, server, tmp_path):
    address = "http://localhost/files"
    pages = {
        "": {"files": [{"fileName": "a", "url": f"{address}/a?X-Signature=1"}], "nextPageToken": "2"},
        "2": {"files": [{"fileName": "run/b", "url": f"{address}/b"}, {"fileName": "c", "url": f"{address}/c"}]},
    }
    server.answers["ListKernelSessionOutput"] = lambda body: pages[body.get("pageToken", "")]
    server.answers |= {"a": b"content of a", "b": b"content of b", "c": (403, b"signature has expired")}
    assert client.outputs(KERNEL) == ["a", "run/b", "c"]
    client.download(KERNEL, {"a": tmp_path / "a", "run/b": tmp_path / "x" / "b"})
    assert ((tmp_path / "a").read_text(), (tmp_path / "x" / "b").read_text()) == ("content of a", "content of b")
    client.download(KERNEL, {"c": tmp_path / "c", "a": tmp_path / "d"})
    assert (tmp_path / "d").read_text() == "content of a" and not (tmp_path / "c").read_bytes()


def test_log_is_read_as_it_comes(client, server):
    lines = [{"data": "one\n"}, {"data": "two\n"}]
    server.answers["run-abcdef-a"] = "".join(f"data: {json.dumps(line)}\n\n" for line in lines).encode() + (
        b"data: END_OF_LOG\n\n"
    )
    assert list(client.log(KERNEL, seconds=5)) == ["one\n", "two\n"]


def test_a_token_that_expired_is_renewed_once_and_never_shown(client, server):
    answers = iter([refuse(401, f"the token {TOKEN} has expired"), {"status": "COMPLETE"}])
    server.answers["GetKernelSessionStatus"] = lambda _: next(answers)
    assert client.status(KERNEL)["status"] == "complete"
    server.answers["GetKernelSessionStatus"] = refuse(401, f"the token {TOKEN} of http://x/y?signature=abc has expired")
    with pytest.raises(KaggleError) as error:
        client.status(KERNEL)
    assert error.value.kind == "account"
    assert TOKEN not in str(error.value) and "[credential]" in str(error.value) and "abc" not in str(error.value)


def test_a_hang_ends_the_process_and_the_next_call_starts_another(server):
    server.answers["GetKernelSessionStatus"] = (200, "hang")
    with Client(environment=server.environment, timeout_seconds=0.5, patience_seconds=0) as client:
        client._timeout_seconds = 10
        client.account()
        first = client._process.pid
        client._timeout_seconds = 0.3
        with pytest.raises(KaggleError, match="has not answered") as error:
            client.status(KERNEL)
        assert error.value.kind == "temporary"
        client._timeout_seconds = 10
        assert client.account() == "me" and client._process.pid != first
        os.kill(client._process.pid, signal.SIGKILL)
        client._process.wait()
        assert client.account() == "me"


def test_an_error_of_this_disk_is_no_error_of_kaggle(client, server):
    server.answers["ListKernelSessionOutput"] = {"files": [{"fileName": "a", "url": "http://localhost/files/a"}]}
    server.answers["a"] = (200, b"content")
    with pytest.raises(OSError, match="No space left") as error:
        client.download(KERNEL, {"a": Path("/dev/full")})
    assert not isinstance(error.value, KaggleError)


def test_nobody_signed_in_and_no_network(tmp_path, server):
    environment = {**server.environment, "KAGGLE_API_TOKEN": "", "HOME": str(tmp_path)}
    with Client(environment=environment, patience_seconds=0) as client, pytest.raises(KaggleError) as error:
        client.account()
    assert error.value.kind == "account" and "nobody is signed in" in error.value.message
    closed = dict.fromkeys(("HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")
    with (
        Client(environment=server.environment | closed, patience_seconds=0) as client,
        pytest.raises(KaggleError) as error,
    ):
        client.account()
    assert error.value.kind == "temporary" and "network" in error.value.hint


def test_kinds_of_errors():
    assert kind_of("Expecting value: line 1 column 1 (char 0)", ("JSONDecodeError",)) == "temporary"
    assert kind_of("Gone", (), 503) == kind_of("", ("ConnectionError",)) == "temporary"
    assert kind_of("Maximum batch GPU session count of 2 reached", (), 400) == "places"
    assert kind_of("anything", (), 400) == "rejected"


def test_an_upload_that_hangs_is_ended_and_a_slow_one_is_not(server, tmp_path, monkeypatch):
    (tmp_path / "large").write_bytes(bytes(4 << 20))
    (tmp_path / "dataset-metadata.json").write_text(json.dumps(dataset_metadata("me/copies")))
    server.answers["StartBlobUpload"] = (200, "hang")
    with Client(environment=server.environment, timeout_seconds=2.5) as client:
        client.account()
        with pytest.raises(KaggleError, match="has not answered for 2 s"):
            client.create_dataset(tmp_path)

    def upload():
        with (tmp_path / "large").open("rb", buffering=0) as file:
            while file.read(1 << 20):
                time.sleep(0.1)
        return "uploaded"

    monkeypatch.setattr(client_process, "_PROGRESS_SECONDS", 0.2)
    items = []
    assert client_process._write_items(client_process._with_progress(upload, tmp_path), items.append) == "uploaded"
    assert items and items[0]["item"]["bytes"] > 0
