"""The loopback Kaggle answers the official client, and runs what is pushed."""

import datetime
import email.utils
import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.loopback_kaggle import Faults, Loopback
from tests.loopback_kaggle.machine import has_namespaces

CLIENT = """
import json, sys
from kaggle import api
api.authenticate()
for line in sys.stdin:
    name, arguments = json.loads(line)
    try:
        answer = eval(name, {"api": api})(*arguments)
        print(json.dumps(["value", str(answer)]), flush=True)
    except BaseException as error:
        print(json.dumps(["error", f"{type(error).__name__}: {error}"]), flush=True)
"""


class Client:
    """The official client in a process of its own."""

    def __init__(self, loopback):
        environment = {**os.environ, **loopback.environment}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def __call__(self, name, *arguments):
        self._process.stdin.write(json.dumps([name, [str(argument) for argument in arguments]]) + "\n")
        self._process.stdin.flush()
        while True:  # the client itself prints, too
            line = self._process.stdout.readline()
            if line.startswith('["'):
                kind, text = json.loads(line)
                return text if kind == "value" else f"! {text}"
            assert line, "the client has ended"

    def close(self):
        self._process.communicate(timeout=10)


def write_kernel(folder, slug, script, **metadata):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(script)
    values = {"id": f"me/{slug}", "title": slug, "code_file": "script.py", "language": "python"}
    values |= {"kernel_type": "script", "machine_shape": "NvidiaTeslaT4", "enable_gpu": True, **metadata}
    (folder / "kernel-metadata.json").write_text(json.dumps(values))
    return folder


@pytest.fixture
def started(tmp_path):
    """Start a loopback with some settings, and the client."""
    opened = []

    def start(**settings):
        loopback = Loopback(tmp_path / "kaggle", **settings).__enter__()
        opened.extend([loopback, Client(loopback)])
        return loopback, opened[-1]

    yield start
    for item in opened[1:]:
        item.close()
    opened[0].__exit__(None, None, None)


SCRIPT = """
import json, os, pathlib, time
root = pathlib.Path(os.environ["SHOESTRING_KAGGLE_ROOT"])
inputs = sorted(p.relative_to(root / "input").as_posix() for p in (root / "input").rglob("*") if p.is_file())
(root / "working" / "below").mkdir()
(root / "working" / "below" / "inputs.json").write_text(json.dumps(inputs))
for number in range(30):
    (root / "working" / f"{number}.txt").write_text(str(number))
print("hello", flush=True)
time.sleep(SECONDS)
"""


def test_client_pushes_runs_and_fetches(started, tmp_path):
    loopback, client = started()
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows.csv").write_text("a,b\n1,2\n")
    (data / "dataset-metadata.json").write_text(
        json.dumps({"id": "me/my-rows", "title": "my rows", "licenses": [{"name": "other"}]})
    )
    assert client("api.dataset_status", "me/my-rows").startswith("! ")
    client("api.dataset_create_new", data)
    assert client("api.dataset_status", "me/my-rows") == "blobs_received"
    assert "Forbidden" in client("api.dataset_create_version", data, "again")
    time.sleep(loopback.settings.processing_seconds)
    assert client("api.dataset_status", "me/my-rows") == "ready"
    assert "rows.csv" in client("api.dataset_list_files", "me/my-rows")
    client("api.dataset_download_files", "me/my-rows", tmp_path / "down")
    assert (tmp_path / "down" / "my-rows.zip").exists()

    first = write_kernel(
        tmp_path / "a", "first-kernel", SCRIPT.replace("SECONDS", "0.3"), dataset_sources=["me/my-rows"]
    )
    answer = json.loads(client("api.kernels_push", first).replace("'", '"'))
    assert answer["versionNumber"] == 1
    assert client("api.kernels_logs_stream", "me/first-kernel")
    loopback.wait_until_idle(10)
    assert "COMPLETE" in client("api.kernels_status", "me/first-kernel")
    client("api.kernels_output", "me/first-kernel", tmp_path / "output", "inputs|29")
    assert json.loads((tmp_path / "output/below/inputs.json").read_text()) == ["datasets/me/my-rows/rows.csv"]
    assert (tmp_path / "output/29.txt").read_text() == "29"  # on the second page
    assert "hello" in client("api.kernels_logs", "me/first-kernel")

    second = write_kernel(
        tmp_path / "b",
        "second-kernel",
        SCRIPT.replace("SECONDS", "60"),
        kernel_sources=["me/first-kernel", "me/nothing"],
    )
    assert "me/nothing" in client("api.kernels_push", second)
    assert "1.000s" not in client("api.quota_view")
    client("api.kernels_push", second)  # a second session beside the first
    assert "Maximum batch GPU session count of 2 reached." in client("api.kernels_push", first)
    assert loopback.counts()["running"] == 2
    loopback.kernels.delete("me/second-kernel")
    loopback.wait_until_idle(10)
    assert "denied" in client("api.kernels_status", "me/second-kernel")


BEATING = """
import pathlib, time
while True:
    pathlib.Path(FILE).write_text(str(time.time()))
    time.sleep(0.02)
"""
CHILDREN = """
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True)
time.sleep(60)
"""


def test_limit_kills_all_processes_and_the_quota_is_kept(started, tmp_path):
    loopback, client = started(session_seconds=1.0, quota_seconds=1.5, refresh_seconds=1000)
    beat = tmp_path / "beat"
    child = BEATING.replace("FILE", repr(str(beat)))
    kernel = write_kernel(tmp_path / "a", "first-kernel", f"CHILD = {child!r}\n{CHILDREN}")
    client("api.kernels_push", kernel)
    loopback.wait_until_idle(10)
    assert "exceeded the max allowed" in client("api.kernels_status", "me/first-kernel")
    assert beat.exists()
    last = beat.read_text()
    time.sleep(0.1)
    assert beat.read_text() == last
    client("api.kernels_push", kernel)
    loopback.wait_until_idle(10)
    assert "Maximum weekly GPU quota" in client("api.kernels_push", kernel)
    assert loopback.counts()["quota_exceeded"] == 1  # the second session was begun with too little left


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error_before", "Service Unavailable"),
        ("error_after", "Bad Gateway"),
        ("throttled", "Expecting value"),
        ("token_expired", "Unauthenticated"),
    ],
)
def test_answers_fail(started, fault, message):
    loopback, client = started(seed=1)
    for _ in range(11):
        assert client("api.quota_view").startswith("{")
    object.__setattr__(loopback.dice.faults, fault, 1.0)
    assert message in client("api.quota_view")
    assert loopback.dice.injected[fault]


def test_files_and_lists_are_damaged(started, tmp_path):
    loopback, client = started(faults=Faults(damaged=1.0))
    script = (
        "import os, pathlib\nfolder = pathlib.Path(os.environ['SHOESTRING_KAGGLE_ROOT'], 'working/checkpoints/one')\n"
        "folder.mkdir(parents=True)\n(folder / 'weights').write_bytes(bytes(100))\n"
    )
    client("api.kernels_push", write_kernel(tmp_path / "a", "first-kernel", script))
    loopback.wait_until_idle(10)
    path = tmp_path / "o" / "checkpoints/one/weights"
    client("api.kernels_output", "me/first-kernel", tmp_path / "o")
    assert sum(path.read_bytes()) == 1
    for fault, content in (("truncated", bytes(50)), ("error_page", b"<!DOCTYPE"), ("file_error", b"<html>")):
        path.unlink()
        object.__setattr__(loopback.dice.faults, fault, 1.0)
        client("api.kernels_output", "me/first-kernel", tmp_path / "o")
        assert path.read_bytes().startswith(content)
        object.__setattr__(loopback.dice.faults, fault, 0.0)


def test_answers_hang_and_lists_are_cut(started, tmp_path):
    loopback, client = started(hang_seconds=0.3)
    script = "import pathlib\nfor number in range(10):\n    pathlib.Path(f'{number}.txt').write_text('')\n"
    kernel = write_kernel(tmp_path / "a", "first-kernel", script)
    assert client("api.quota_view").startswith("{")  # it has signed in
    for fault, sessions in (("hang", 0), ("hang_after", 1)):
        object.__setattr__(loopback.dice.faults, fault, 1.0)
        started_at = time.monotonic()
        assert client("api.kernels_push", kernel).startswith("! ")
        assert time.monotonic() - started_at >= loopback.settings.hang_seconds
        assert loopback.counts()["sessions"] == sessions
        object.__setattr__(loopback.dice.faults, fault, 0.0)
    loopback.wait_until_idle(10)
    for fault, files in ((1.0, 6), (0.0, 10)):
        object.__setattr__(loopback.dice.faults, "cut_list", fault)
        client("api.kernels_output", "me/first-kernel", tmp_path / "output")
        assert len(list((tmp_path / "output").glob("*.txt"))) == files


def push(loopback, text, **values):
    """Push a GPU script past the client, and return its session."""
    loopback.kernels.push({"slug": "me/first-kernel", "text": text, "enableGpu": True, **values})
    return loopback.kernels.sessions[-1]


def shown_status(loopback):
    body = {"userName": "me", "kernelSlug": "first-kernel"}
    return loopback.answer("kernels.KernelsApiService/GetKernelSessionStatus", body)["status"]


SLEEP = "import time\ntime.sleep(60)\n"


@pytest.mark.parametrize(
    ("fault", "low", "high"),
    [
        (None, 0.5, 0.5),
        ("timeout_ignored", 0.8, 0.8),  # the platform's own limit
        ("killed_early", 0.05, 0.35),
    ],
)
def test_limits_that_do_not_hold(tmp_path, fault, low, high):
    faults = Faults(**({fault: 1.0} if fault else {}))
    with Loopback(tmp_path, faults=faults, session_seconds=0.8, keep_outputs="always") as loopback:
        session = push(loopback, SLEEP, sessionTimeoutSeconds=0.5)
        loopback.wait_until_idle(10)
        assert low <= session.machine.limit_seconds <= high
        assert session.seconds >= session.machine.limit_seconds
        assert (session.end_reason, shown_status(loopback)) == ("limit", "CANCEL_ACKNOWLEDGED")
        assert session.output is not None


def test_outputs_are_lost_and_statuses_are_wrong(tmp_path):
    faults = Faults(output_lost=1.0, status_runs_on=1.0, status_lags=1.0)
    with Loopback(tmp_path, faults=faults, lag_seconds=60.0) as loopback:
        first = push(loopback, "")
        loopback.wait_until_idle(10)
        assert (first.end_reason, first.output) == ("exit status 0", None)
        assert shown_status(loopback) == "RUNNING"
        first.ended -= 60.0
        assert shown_status(loopback) == "COMPLETE"
        second = push(loopback, SLEEP)
        assert shown_status(loopback) == "COMPLETE"  # of the version before
        second.pushed -= 60.0
        assert shown_status(loopback) in ("QUEUED", "RUNNING")
        object.__setattr__(loopback.dice, "faults", Faults(status_lies=1.0))
        third = push(loopback, "")
        while not third.is_over:
            time.sleep(0.02)
        assert shown_status(loopback) == "CANCEL_ACKNOWLEDGED"
        assert third.status == "COMPLETE"
        assert third.output is not None


@pytest.mark.skipif(not has_namespaces(), reason="this system allows no network namespaces")
def test_session_without_the_internet_that_was_asked_for(tmp_path):
    with Loopback(tmp_path) as loopback:
        for fault in (0.0, 1.0):
            object.__setattr__(loopback.dice.faults, "no_internet", fault)
            # A network namespace of its own has another inode than that of this process.
            session = push(loopback, "import os\nprint(os.readlink('/proc/self/ns/net'))\n", enableInternet=True)
            loopback.wait_until_idle(10)
            is_ours = session.log_text().strip() == str(Path("/proc/self/ns/net").readlink())
            assert is_ours == (not fault), session.log_text()


def test_clock_is_off(tmp_path):
    with Loopback(tmp_path, refresh_seconds=100.0, clock_offset_seconds=-3600.0) as loopback:
        refresh = loopback.answer("kernels.KernelsApiService/GetAcceleratorQuotaStatistics", {})["quotaRefreshTime"]
        connection = http.client.HTTPConnection("127.0.0.1", int(loopback.environment["HTTP_PROXY"].rpartition(":")[2]))
        connection.request("GET", "/nothing")
        shown = connection.getresponse().headers["Date"]
        connection.close()
    now = datetime.datetime.now(datetime.UTC)
    assert -3505 < (datetime.datetime.fromisoformat(refresh) - now).total_seconds() < -3495
    assert -3605 < (email.utils.parsedate_to_datetime(shown) - now).total_seconds() < -3595
