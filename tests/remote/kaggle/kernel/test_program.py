"""The script of a session, run as a process in a folder laid out as Kaggle does."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import shoestring
from shoestring.remote.kaggle.kernel.script import program as joined_program
from shoestring.remote.kaggle.kernel.session_file import NAME, read_session_file
from tests.crash.small_disk import SmallDisk
from tests.remote.kaggle.kernel.layout import finish, make_config, run_session, start, write_package

OPTIONS = {"size": "tiny", "epochs": "12"}
PREVIOUS = {"kernel": "me/run-a", "nonce": f"{1:032x}"}
MODEL = "model.safetensors"


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The root and the file of a session that was asked to end after its first updates."""
    root = tmp_path_factory.mktemp("first")
    write_package(root / "input" / "datasets" / "me" / "package")
    process = start(root, make_config(1, set=OPTIONS))
    events = root / "working" / "run" / "events.jsonl"
    while not (events.exists() and '"progress"' in events.read_text()):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    return root, finish(process, root)


@pytest.fixture
def program(first, tmp_path, monkeypatch):
    """The program as a module with a root of its own, in which Shoestring is installed and the first output mounted."""
    (tmp_path / "temp").mkdir()
    (tmp_path / "working").mkdir()
    (tmp_path / "temp" / "site-packages").symlink_to(first[0] / "temp" / "site-packages")
    shutil.copytree(first[0] / "working", tmp_path / "input" / "run-a")
    monkeypatch.setenv("SHOESTRING_KAGGLE_ROOT", str(tmp_path))
    module = ModuleType("session_program")
    exec(compile(joined_program(), "program", "exec"), vars(module))
    return module


def make_session(program, **values):
    return program.Session({**make_config(2, set=OPTIONS), "previous": PREVIOUS, **values})


def change(path: Path, **values):
    """Change values of the session's file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def flip(path: Path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_session_that_is_asked_to_end_leaves_what_continues(first):
    root, left = first
    assert (left.status, left.first_update) == ("paused", 0) and 0 < left.update < left.total_updates, left
    assert left.checkpoint == f"update-{left.update:08d}" and not left.damaged
    assert {"shoestring.log", "run/plan.json", "run/state.json", "run/events.jsonl"} <= left.files.keys()
    assert f"run/checkpoints/{left.checkpoint}/manifest.json" in left.files
    assert len(left.files) + 1 == sum(path.is_file() for path in (root / "working").rglob("*"))
    for name, entry in left.files.items():
        content = (root / "working" / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.bytes, entry.sha256)
    assert left.facts["shoestring"] == shoestring.__version__ and left.facts["disk_free_bytes"] > 0
    assert left.facts["python"].startswith("3.") and left.facts["brought"] == {}


def test_two_sessions_give_the_bits_of_one_unbroken_run(first, tmp_path):
    write_package(tmp_path / "input" / "package")
    shutil.copytree(first[0] / "working", tmp_path / "input" / "run-a")
    config = {**make_config(2, set=OPTIONS), "previous": PREVIOUS}
    process = start(tmp_path, config)
    shoestring.train("temporal", run=tmp_path / "unbroken", **OPTIONS)
    left = finish(process, tmp_path)
    assert (left.status, left.first_update) == ("finished", first[1].update), left
    assert left.update == left.total_updates and "run/report.html" in left.files
    for folder in ("light", "best"):
        weights = (tmp_path / "working" / "run" / folder / MODEL).read_bytes()
        assert weights == (tmp_path / "unbroken" / folder / MODEL).read_bytes()


def test_session_without_its_package_fails_with_the_reason(tmp_path):
    left = run_session(tmp_path, make_config(1))
    assert left.status == "failed" and "not mounted" in left.reason and "me/package" in left.hint
    assert left.update == 0 and not (tmp_path / "working" / "run").exists()


def test_session_without_the_gpu_that_it_needs_ends_at_once(tmp_path):
    left = run_session(tmp_path, make_config(1, needs_gpu=True))
    assert (left.status, left.exit_status) == ("failed", None)
    assert left.reason == "Kaggle gave this session no GPU, so nothing was trained"
    assert "phone number" in left.hint and "--allow-cpu" in left.hint


def test_session_with_a_gpu_that_torch_has_no_kernels_for_ends_at_once(tmp_path):
    for name, content in {
        "nvidia-smi": "#!/bin/sh\ncase $1 in *compute_cap) echo 'Tesla T4, 7.5'; echo 'Tesla P100-PCIE-16GB, 6.0';; "
        "*) echo Tesla;; esac\n",
        "torch.py": "class cuda:\n    get_arch_list = lambda: ['sm_70', 'sm_75', 'sm_120']\n",
    }.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    left = run_session(tmp_path / "kaggle", make_config(1, needs_gpu=True), PATH=path, PYTHONPATH=str(tmp_path))
    assert left.status == "failed"
    assert "a Tesla P100-PCIE-16GB (sm_60), for which torch" in left.reason
    assert "only for sm_70 sm_75 sm_120, so nothing was trained" in left.reason and "--on kaggle-t4x2" in left.hint


def test_failed_training_has_the_message_as_reason(program):
    session = make_session(program, set={"epochs": "0"})
    program.train(session, "temporal")
    assert session.state["status"] == "failed"
    assert "exit status 2: options of temporal cannot be used\n  - epochs=0" in session.state["reason"]


def test_trainer_that_ignores_signals_is_killed_with_its_children(program):
    session = make_session(program, limit_seconds=1, hand_over_seconds=0.8)
    command = "trap '' TERM; sleep 100 & echo $!; wait; wait; wait"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True) as process:
        child = int(process.stdout.readline())
        assert program.wait_for_trainer(session, process) is True
        assert process.returncode == -signal.SIGKILL
    time.sleep(0.1)
    status = Path(f"/proc/{child}/status")
    assert not status.exists() or "zombie" in status.read_text()


def test_damaged_checkpoint_is_named_and_the_one_before_is_used(program, first):
    update = first[1].update
    flip(program.INPUT / "run-a" / "run" / "checkpoints" / f"update-{update:08d}" / MODEL)
    session = make_session(program)
    program.copy_previous(session)
    assert session.state["first_update"] < update
    assert f"checkpoints/update-{update:08d}/{MODEL}" in session.state["damaged"][0]
    assert not (program.RUN / "checkpoints" / f"update-{update:08d}").exists()


def test_nothing_is_trained_if_no_checkpoint_can_be_used(program):
    for path in (program.INPUT / "run-a" / "run" / "checkpoints").glob(f"*/{MODEL}"):
        flip(path)
    with pytest.raises(program.SessionError, match="no checkpoint is intact"):
        program.copy_previous(make_session(program))


def test_plan_that_differs_from_the_one_that_was_left_is_not_used(program):
    with (program.INPUT / "run-a" / "run" / "plan.json").open("a") as file:
        file.write("\n")
    with pytest.raises(program.SessionError, match=r"plan\.json is damaged"):
        program.copy_previous(make_session(program))


def test_output_of_another_session_or_none_is_not_used(program):
    change(program.INPUT / "run-a" / NAME, nonce="f" * 32)
    with pytest.raises(program.SessionError, match="another session"):
        program.copy_previous(make_session(program))
    shutil.rmtree(program.INPUT / "run-a")
    with pytest.raises(program.SessionError, match="not mounted"):
        program.copy_previous(make_session(program))


def test_output_that_a_kill_left_is_continued(program, first):
    output = program.INPUT / "run-a"
    change(output / NAME, status="running", files={})
    (output / "run" / "lock").touch()
    (output / "run" / "checkpoints" / ".writing-00000099-7").mkdir()
    (output / "run" / "checkpoints" / ".writing-00000099-7" / MODEL).touch()
    with (output / "run" / "events.jsonl").open("a") as file:
        file.write('{"time": 1')
    # A mount of Kaggle below its kind and owner.
    output.rename(output.with_name("moved"))
    (output.parent / "notebooks" / "me").mkdir(parents=True)
    output.with_name("moved").rename(output.parent / "notebooks" / "me" / "run-a")
    session = make_session(program)
    program.copy_previous(session)
    assert session.state["first_update"] == first[1].update and not session.state["damaged"]
    assert {path.name for path in (program.RUN / "checkpoints").iterdir()} >= {first[1].checkpoint}
    assert not list(program.RUN.rglob(".*")) and not (program.RUN / "lock").exists()


def test_hostile_output_brings_nothing_along(program, first, tmp_path):
    run = program.INPUT / "run-a" / "run"
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (run / "light").mkdir(exist_ok=True)
    (run / "light" / "link.json").symlink_to(secret)
    (run / "evidence").symlink_to(tmp_path)
    (run / "recipe.py").write_text("raise SystemExit")
    (run / "light" / "sitecustomize.py").write_text("raise SystemExit")
    os.mkfifo(run / "light" / "pipe.json")
    for files in ({}, {"run/../../escaped": {}, "/etc/passwd": {}, "run/light/link.json": {}}):
        original = json.loads((first[0] / "working" / NAME).read_text())["files"]
        change(program.INPUT / "run-a" / NAME, status="paused", files=files and {**original, **files})
        session = make_session(program)
        program.copy_previous(session)
        names = {path.name for path in program.RUN.rglob("*")}
        assert not names & {"link.json", "evidence", "recipe.py", "sitecustomize.py", "pipe.json", "escaped"}
        assert session.state["first_update"] == first[1].update
    with (program.INPUT / "run-a" / NAME).open("w") as file:
        file.truncate(10 << 30)
    with pytest.raises(program.SessionError, match="not mounted"):
        program.copy_previous(make_session(program))


def test_recipe_that_differs_from_its_digest_is_not_run(program):
    config = make_config(1, recipe="recipe/mine.py", files={"recipe/mine.py": b"pass"})
    session = program.Session(config)
    assert Path(program.unpack_recipe(session)).read_bytes() == b"pass"
    config["digests"]["recipe/mine.py"] = "0" * 64
    with pytest.raises(program.SessionError, match="differs from its digest"):
        program.unpack_recipe(session)
    config["files"] = {"../mine.py": config["files"]["recipe/mine.py"]}
    with pytest.raises(program.SessionError, match="outside"):
        program.unpack_recipe(session)


def test_session_file_is_written_although_the_disk_is_full(program, tmp_path):
    disk = SmallDisk(program.WORKING)
    try:
        if not disk.is_mounted:
            pytest.skip("a small filesystem needs root")
        session = make_session(program)
        session.write()
        session.log("x" * 10_000)
        disk.fill()
        with pytest.raises(program.SessionError, match="cannot hold"):
            program.probe_disk(session)
        session.record(status="failed", reason="the disk is full")
        program.leave(session)
        left = read_session_file(program.WORKING / NAME)
        assert left.status == "failed" and "disk failed" in left.notes[0]
    finally:
        disk.close()


def write_wheel(folder: Path, name: str, *requirements: str):
    info = f"{name}-1.0.dist-info"
    lines = [f"Requires-Dist: {requirement}\n" for requirement in requirements]
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{''.join(lines)}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")  # importing pip does, after other tests
def test_missing_requirements_come_from_the_package(program, tmp_path):
    program.SITE.unlink()
    package = tmp_path / "input" / "package"
    package.mkdir()
    write_wheel(package, "shoestring", "numpy>=1", "needed>=1", "other; extra == 'temporal'", "no; extra == 'vqa'")
    write_wheel(package, "other", "absent>=3")
    write_wheel(package, "needed")
    with pytest.raises(program.SessionError, match=r"no internet, and neither .* has absent>=3$") as error:
        program.install(make_session(program, python="3.1"), package)
    assert "wheels for Python 3.1)" in str(error.value) and "upgrade Shoestring" in error.value.hint
    assert {"needed-1.0.dist-info", "other-1.0.dist-info"} <= {path.name for path in program.SITE.iterdir()}
    write_wheel(package, "shoestring", "torch>=999")
    with pytest.raises(program.SessionError, match=r"image has torch .* needs torch>=999"):
        program.install(make_session(program), package)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")
def test_what_the_image_has_in_a_sufficient_version_is_not_installed(program, tmp_path, monkeypatch):
    """The image may be newer than the wheels: they are for what it lacks or has in an older version."""
    program.SITE.unlink()
    package, image = tmp_path / "input" / "package", tmp_path / "image"
    package.mkdir()
    image.mkdir()
    requirements = [f"{name}>=0.9; extra == '{extra}'" for name, extra in (("old", "a"), ("new", "b"), ("no", "c"))]
    write_wheel(package, "shoestring", *requirements)
    for name, installed in (("old", "0.8"), ("new", "1.1"), ("no", None)):
        write_wheel(package, name)
        if installed:
            (image / f"{name}-{installed}.dist-info").mkdir()
            (image / f"{name}-{installed}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {installed}\n")
    monkeypatch.syspath_prepend(str(image))
    program.install(make_session(program, extras=["a", "b"]), package)
    assert {path.stem for path in program.SITE.iterdir()} == {"shoestring-1.0", "old-1.0"}
