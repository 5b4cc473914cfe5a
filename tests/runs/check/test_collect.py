"""Facts of this machine, and of files and hosts that the tests create."""

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from shoestring.base.units import MIB
from shoestring.hardware import probe
from shoestring.recipe.finding import choose
from shoestring.runs.check import build, disk, host, inputs, network, run_lock
from shoestring.runs.check.collect import collect_facts
from shoestring.training.run_directory.lock import locked


def test_disk_probe_syncs_and_removes_its_file(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), fsync(descriptor)))
    (tmp_path / "existing").write_bytes(b"x" * 1000)
    result = disk.probe_disk(tmp_path, requested_bytes=3 * MIB)
    assert (result.folder, result.written_bytes, result.error, result.used_bytes) == (tmp_path, 3 * MIB, "", 1000)
    assert result.seconds > 0 and result.free_bytes > 0
    assert abs(result.clock_offset_seconds) < 60
    assert [path.name for path in tmp_path.iterdir()] == ["existing"]
    assert len(synced) == 1


def test_disk_probe_uses_nearest_parent_of_a_new_run(tmp_path):
    result = disk.probe_disk(tmp_path / "runs" / "x", requested_bytes=MIB)
    assert (result.folder, result.used_bytes) == (tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_disk_probe_reports_full_and_read_only_disks(tmp_path, monkeypatch):
    write, writes = os.write, []

    def write_once(descriptor, data):
        if writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        writes.append(descriptor)
        return write(descriptor, data[:MIB])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_once)
        result = disk.probe_disk(tmp_path, requested_bytes=4 * MIB)
    assert (result.written_bytes, result.error) == (MIB, "No space left on device")
    assert list(tmp_path.iterdir()) == []

    def fail_to_open(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", fail_to_open)
    assert disk.probe_disk(tmp_path).error == "Read-only file system"


class FakeHost(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(204 if self.path == "/good" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """The address of an HTTP server on this machine."""
    server = HTTPServer(("127.0.0.1", 0), FakeHost)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_answering_refusing_and_silent_hosts(server, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hosts = {
            "good": f"{server}/good",
            "error": f"{server}/missing",
            "refused": f"http://127.0.0.1:{closed.getsockname()[1]}/",
            "silent": f"http://127.0.0.1:{silent.getsockname()[1]}/",
        }
        errors = network.probe_hosts(hosts, seconds=0.5)
    assert (errors["good"], errors["error"]) == ("", "")
    assert "refused" in errors["refused"]
    assert "timed out" in errors["silent"] or "no answer" in errors["silent"]


def test_endless_dns_lookup_is_abandoned(monkeypatch):
    test_ended = threading.Event()
    monkeypatch.setattr(network, "_probe_host", lambda *_: test_ended.wait() and "")
    try:
        assert network.probe_hosts({"a": "", "b": ""}, seconds=0.05) == dict.fromkeys("ab", "no answer in 0.05 s")
    finally:
        test_ended.set()


@pytest.mark.parametrize("mount", ["prices", "me/prices", "datasets/me/prices"])
def test_input_is_located_under_any_mount_path(tmp_path, mount):
    file = tmp_path / mount / "bars.csv"
    file.parent.mkdir(parents=True)
    file.write_text("time")
    (result,) = inputs.inspect_inputs({"data": Path("/kaggle/input/other/bars.csv")}, roots=[tmp_path])
    assert (result.problem, result.alternatives) == ("does not exist", (file,))
    (result,) = inputs.inspect_inputs({"data": Path("/somewhere/prices")}, roots=[tmp_path])
    assert result.alternatives == (file.parent,)
    (result,) = inputs.inspect_inputs({"data": file}, roots=[tmp_path])
    assert (result.problem, result.alternatives) == ("", ())


def test_empty_directory_is_a_problem(tmp_path):
    (result,) = inputs.inspect_inputs({"data": tmp_path}, roots=[])
    assert result.problem == "is empty"


def test_search_for_inputs_lists_limited_entries(tmp_path, monkeypatch):
    for number in range(30):
        (tmp_path / f"{number:02d}").mkdir()
    (tmp_path / "29" / "bars.csv").write_text("")
    monkeypatch.setattr(inputs, "_MAX_ENTRIES", 20)
    assert inputs.inspect_inputs({"data": Path("/x/bars.csv")}, roots=[tmp_path])[0].alternatives == ()
    monkeypatch.setattr(inputs, "_MAX_ENTRIES", 100)
    assert len(inputs.inspect_inputs({"data": Path("/x/bars.csv")}, roots=[tmp_path])[0].alternatives) == 1


def test_mounted_data_sets_are_listed(tmp_path):
    for path in ("datasets/me/prices/bars.csv", "flat/a.csv", "flat/b.csv"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert inputs.mounted_data_sets(tmp_path) == (tmp_path / "datasets/me/prices", tmp_path / "flat")
    assert inputs.mounted_data_sets(tmp_path / "nowhere") == ()


def test_data_sets_of_two_owners_are_distinct(tmp_path):
    for path in ("datasets/me/prices/bars.csv", "datasets/you/words/a.csv"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert inputs.mounted_data_sets(tmp_path) == (tmp_path / "datasets/me/prices", tmp_path / "datasets/you/words")


def test_probe_of_the_installed_build():
    import torch

    result = build.probe_build()
    assert result.version == torch.__version__
    assert not result.error or "Found no NVIDIA driver" in result.error  # of a CUDA build on a machine without a GPU
    assert (result.cuda is None) is (torch.version.cuda is None)
    assert result.threads >= 1


def test_crash_and_hang_of_a_build_are_reported(monkeypatch):
    def crash(*_, **__):
        return subprocess.CompletedProcess([], -11, "", "noise\nFatal Python error: Segmentation fault\n")

    monkeypatch.setattr(subprocess, "run", crash)
    assert build.probe_build().error.endswith("status -11: Fatal Python error: Segmentation fault")

    def time_out(*_, **__):
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", time_out)
    assert "did not answer" in build.probe_build().error


def test_import_error_of_torch_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = build.parse_build(json.loads(json.dumps(build.describe_build())))
    assert (result.version, "cannot be imported" in result.error) == ("", True)


def test_facts_of_a_cuda_build_are_parsed():
    facts = {
        "version": "2.13.0+cu128", "cuda": "12.8", "archs": ["sm_75"], "flash": True, "threads": 4, "error": "",
        "gpus": [{"title": "Tesla T4", "capability": [7, 5], "error": ""}],
    }  # fmt: skip
    result = build.parse_build(facts)
    assert (result.cuda, result.archs, result.gpus[0].capability) == ((12, 8), ("sm_75",), (7, 5))


def test_lock_holder_is_read_without_writing(tmp_path):
    assert not run_lock.inspect_lock(tmp_path).locked
    script = (
        "import sys; from pathlib import Path; from shoestring.training.run_directory.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"locked\n"
        content = (tmp_path / "lock").read_bytes()
        lock = run_lock.inspect_lock(tmp_path)
        assert (tmp_path / "lock").read_bytes() == content
        assert (lock.locked, f"pid {process.pid} on" in lock.holder) == (True, True)
        assert lock.process_status
    assert not run_lock.inspect_lock(tmp_path).locked


def test_inspection_does_not_block_the_lock(tmp_path):
    (tmp_path / "lock").write_text("pid 1 on elsewhere, begun 7\n")
    lock = run_lock.inspect_lock(tmp_path)
    assert (lock.locked, lock.process_status, lock.holder) == (False, "", "pid 1 on elsewhere, begun 7")
    with locked(tmp_path):
        pass


def test_host_facts_respect_the_limits_of_this_process():
    facts = host.inspect_host()
    assert (facts.cores, facts.ram_bytes) == (probe.cores(), probe.ram_bytes())
    assert 0 < facts.ram_free_bytes <= facts.ram_bytes
    assert facts.temporary_free_bytes > 0
    assert host.inspect_host(shm=Path("/nowhere")).shm_bytes is None
    assert host.read_clock().monotonic


def test_missing_temporary_folder_has_no_free_space(monkeypatch):
    def fail():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    assert host.inspect_host().temporary_free_bytes == 0


def test_collect_all_facts_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "probe_hosts", lambda: {"huggingface.co": "off"})
    monkeypatch.setattr(build, "probe_build", lambda: build.Build(version="2.13.0"))
    loaded, _ = choose("temporal", {"data": tmp_path / "none.csv", "lora_r": 4})
    facts = collect_facts("local", tmp_path, loaded)
    assert (facts.is_local, facts.recipe, facts.internet) == (True, "temporal", {"huggingface.co": "off"})
    assert facts.inputs[0].problem
    assert {"pandas", "peft"} <= {package.name for package in facts.packages}
    assert list(tmp_path.iterdir()) == []
