"""Facts of the machine that the tests run on, and of files and hosts that they make."""

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

from shoestring.check import build, holding, host, inputs, packages, reaching, writing
from shoestring.check.look import look
from shoestring.hardware import probe
from shoestring.recipe.finding import choose
from shoestring.session.lock import locked
from shoestring.units import MIB

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def test_writing_waits_for_the_disk_leaves_nothing_and_tells_what_it_wrote(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), fsync(descriptor)))
    (tmp_path / "there").write_bytes(b"x" * 1000)
    found = writing.write(tmp_path, asked=3 * MIB)
    assert (found.folder, found.written_bytes, found.error, found.used_bytes) == (tmp_path, 3 * MIB, "", 1000)
    assert found.seconds > 0 and found.free_bytes > 0
    assert abs(found.clock_offset_seconds) < 60
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
    assert len(synced) == 1


def test_a_run_that_is_not_there_yet_is_tried_above_it_and_not_made(tmp_path):
    found = writing.write(tmp_path / "runs" / "x", asked=MIB)
    assert (found.folder, found.used_bytes) == (tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_or_read_only_is_a_fact_not_an_error(tmp_path, monkeypatch):
    write, count = os.write, []

    def full(descriptor, data):
        if count:
            raise OSError(errno.ENOSPC, "No space left on device")
        count.append(descriptor)
        return write(descriptor, data[:MIB])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        found = writing.write(tmp_path, asked=4 * MIB)
    assert (found.written_bytes, found.error) == (MIB, "No space left on device")
    assert list(tmp_path.iterdir()) == []

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    assert writing.write(tmp_path).error == "Read-only file system"


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(204 if self.path == "/good" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A host that answers, on this machine."""
    made = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


def test_hosts_that_answer_refuse_and_keep_silent(server, monkeypatch):
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
        found = reaching.reach(hosts, seconds=0.5)
    assert (found["good"], found["error"]) == ("", "")
    assert "refused" in found["refused"]
    assert "timed out" in found["silent"] or "no answer" in found["silent"]


def test_a_name_that_is_looked_up_for_ever_is_not_waited_for(monkeypatch):
    found = threading.Event()
    monkeypatch.setattr(reaching, "_ask", lambda *_: found.wait() and "")
    try:
        assert reaching.reach({"a": "", "b": ""}, seconds=0.05) == dict.fromkeys("ab", "no answer in 0.05 s")
    finally:
        found.set()


@pytest.mark.parametrize("mount", ["prices", "me/prices", "datasets/me/prices"])
def test_an_input_is_found_however_the_platform_mounts_it(tmp_path, mount):
    file = tmp_path / mount / "bars.csv"
    file.parent.mkdir(parents=True)
    file.write_text("time")
    (found,) = inputs.look({"data": Path("/kaggle/input/other/bars.csv")}, roots=[tmp_path])
    assert (found.problem, found.elsewhere) == ("it is not there", (file,))
    (found,) = inputs.look({"data": Path("/somewhere/prices")}, roots=[tmp_path])
    assert found.elsewhere == (file.parent,)
    (found,) = inputs.look({"data": file}, roots=[tmp_path])
    assert (found.problem, found.elsewhere) == ("", ())


def test_an_empty_directory_is_no_input(tmp_path):
    (found,) = inputs.look({"data": tmp_path}, roots=[])
    assert found.problem == "it is empty"


def test_looking_for_inputs_ends_in_a_bucket_of_millions(tmp_path, monkeypatch):
    for number in range(30):
        (tmp_path / f"{number:02d}").mkdir()
    (tmp_path / "29" / "bars.csv").write_text("")
    monkeypatch.setattr(inputs, "_ENTRIES", 20)
    assert inputs.look({"data": Path("/x/bars.csv")}, roots=[tmp_path])[0].elsewhere == ()
    monkeypatch.setattr(inputs, "_ENTRIES", 100)
    assert len(inputs.look({"data": Path("/x/bars.csv")}, roots=[tmp_path])[0].elsewhere) == 1


def test_what_is_mounted_is_told_by_where_its_files_are(tmp_path):
    for path in ("datasets/me/prices/bars.csv", "flat/a.csv", "flat/b.csv"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert inputs.mounted(tmp_path) == (tmp_path / "datasets/me/prices", tmp_path / "flat")
    assert inputs.mounted(tmp_path / "nowhere") == ()


def test_two_owners_under_one_root_are_two_data_sets(tmp_path):
    for path in ("datasets/me/prices/bars.csv", "datasets/you/words/a.csv"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    assert inputs.mounted(tmp_path) == (tmp_path / "datasets/me/prices", tmp_path / "datasets/you/words")


def test_the_build_of_this_machine_by_asking_it():
    import torch

    found = build.look()
    assert (found.version, found.error) == (torch.__version__, "")
    assert (found.cuda is None) is (torch.version.cuda is None)
    assert found.threads >= 1


def test_a_build_that_breaks_or_hangs_is_a_fact(monkeypatch):
    def ended(*_, **__):
        return subprocess.CompletedProcess([], -11, "", "noise\nFatal Python error: Segmentation fault\n")

    monkeypatch.setattr(subprocess, "run", ended)
    assert build.look().error.endswith("status -11: Fatal Python error: Segmentation fault")

    def late(*_, **__):
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(subprocess, "run", late)
    assert "did not answer" in build.look().error


def test_a_torch_that_cannot_be_imported_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = build.understood(json.loads(json.dumps(build.tell())))
    assert (found.version, "cannot be imported" in found.error) == ("", True)


def test_what_a_gpus_build_tells_is_understood():
    told = {
        "version": "2.13.0+cu128", "cuda": "12.8", "archs": ["sm_75"], "flash": True, "threads": 4, "error": "",
        "used": [{"title": "Tesla T4", "capability": [7, 5], "error": ""}],
    }  # fmt: skip
    found = build.understood(told)
    assert (found.cuda, found.archs, found.used[0].capability) == ((12, 8), ("sm_75",), (7, 5))


def test_who_holds_a_run_is_seen_without_touching_it(tmp_path):
    assert not holding.look(tmp_path).held
    script = (
        "import sys; from pathlib import Path; from shoestring.session.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        before = (tmp_path / "lock").read_bytes()
        found = holding.look(tmp_path)
        assert (tmp_path / "lock").read_bytes() == before
        assert (found.held, f"pid {other.pid} on" in found.holder) == (True, True)
        assert found.state
    assert not holding.look(tmp_path).held


def test_looking_at_a_run_keeps_nobody_from_it(tmp_path):
    (tmp_path / "lock").write_text("pid 1 on elsewhere, begun 7\n")
    found = holding.look(tmp_path)
    assert (found.held, found.state, found.holder) == (False, "", "pid 1 on elsewhere, begun 7")
    with locked(tmp_path):
        pass


def test_this_machine_by_its_limits():
    found = host.look()
    assert (found.cores, found.ram_bytes) == (probe.cores(), probe.ram_bytes())
    assert 0 < found.ram_free_bytes <= found.ram_bytes
    assert found.temporary_free_bytes > 0
    assert host.look(shm=Path("/nowhere")).shm_bytes is None
    assert host.clock().monotonic


def test_no_place_for_temporary_files_is_a_place_without_room(monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert host.look().temporary_free_bytes == 0


def test_the_tested_versions_are_those_of_the_constraints():
    pins = dict(line.split("==") for line in CONSTRAINTS.read_text().split() if "==" in line)
    assert {name: pins[name] for name in packages.TESTED} == packages.TESTED


def test_packages_are_read_from_the_projects_own_metadata():
    always = {package.name: package for package in packages.needed(())}
    assert {"torch", "safetensors", "nvidia-ml-py"} <= always.keys() and "peft" not in always
    assert always["torch"].least == "2.6" and packages.numbers(always["torch"].installed) >= (2, 6)
    chart = {package.name: package for package in packages.needed({"chart"}, installed=lambda name: "")}
    assert (chart["peft"].extra, chart["peft"].installed) == ("chart", "")
    assert not {"pytest", "bitsandbytes"} & chart.keys()


@pytest.mark.parametrize(("text", "expected"), [("2.13.0+cu130", (2, 13, 0)), ("3.0rc1", (3, 0, 1)), ("", ())])
def test_versions_as_numbers(text, expected):
    assert packages.numbers(text) == expected


def test_everything_together_here(tmp_path, monkeypatch):
    monkeypatch.setattr(reaching, "reach", lambda: {"huggingface.co": "off"})
    monkeypatch.setattr(build, "look", lambda: build.Build(version="2.13.0"))
    loaded, _ = choose("temporal", {"data": tmp_path / "none.csv", "lora_r": 4})
    found = look("local", tmp_path, loaded)
    assert (found.probed, found.recipe, found.internet) == (True, "temporal", {"huggingface.co": "off"})
    assert found.inputs[0].problem
    assert {"pandas", "peft"} <= {package.name for package in found.packages}
    assert list(tmp_path.iterdir()) == []
