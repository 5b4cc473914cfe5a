"""The lock of a run, on filesystems with and without locks."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shoestring.base.errors import UsageError
from shoestring.base.process_identity import process_identity
from shoestring.runs.check.run_lock import inspect_lock
from shoestring.training.run_directory import lock

HOLD = """
import sys
from pathlib import Path
from shoestring.training.run_directory.lock import locked
with locked(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""

HOLD_IN_CHILD = """
import os, sys, time
from pathlib import Path
from shoestring.training.run_directory.lock import locked
if os.fork():
    time.sleep(600)
parent = os.getppid()
with locked(Path(sys.argv[1])):
    print(flush=True)
    while os.getppid() == parent:
        time.sleep(0.01)
    time.sleep(1)
"""


@pytest.fixture(params=["flock", "none"])
def filesystem(request, monkeypatch):
    """A filesystem with locks, and one without."""

    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if request.param == "none":
        monkeypatch.setattr(fcntl, "flock", fail)
    return request.param


def test_living_holder_is_named_and_dead_one_ignored(filesystem, tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        holder.stdout.readline()
        with pytest.raises(UsageError, match=f"another process .pid {holder.pid} on "), lock.locked(tmp_path):
            pass
        holder.kill()
    with lock.locked(tmp_path):
        assert f"pid {os.getpid()} " in (tmp_path / "lock").read_text()
    assert (tmp_path / "lock").read_text() == ""


def test_holder_on_another_machine_keeps_the_lock(filesystem, tmp_path):
    (tmp_path / "lock").write_text("pid 1 on elsewhere, begun 5\n")
    if filesystem == "flock":
        with lock.locked(tmp_path):
            return
    with (
        pytest.raises(UsageError, match="pid 1 on elsewhere, started at 1970-01-01 00:00:05 UTC") as error,
        lock.locked(tmp_path),
    ):
        pass
    assert "if it no longer runs, remove" in error.value.hint


def test_reused_process_id_is_not_the_holder(tmp_path, monkeypatch):
    (tmp_path / "lock").write_text(f"pid {os.getpid()} on {os.uname().nodename}, begun 5\n")
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSYS, "none")))
    with lock.locked(tmp_path):
        pass


def test_other_lock_errors_are_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"), lock.locked(tmp_path):
        pass


def test_forked_child_does_not_hold_the_lock(tmp_path):
    """For example the child that traces an update during planning."""
    code = (
        "import os, signal, sys, time; from pathlib import Path\n"
        "from shoestring.training.run_directory.lock import locked\n"
        "reader, writer = os.pipe()\n"
        "with locked(Path(sys.argv[1])):\n"
        "    child = os.fork()\n"
        "    if not child: os.write(writer, b'started'); time.sleep(60); os._exit(0)\n"
        "    os.read(reader, 7); print(child, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    child = int(killed.stdout.readline())
    assert killed.wait(30) == -signal.SIGKILL
    try:
        with lock.locked(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        killed.stdout.close()


def test_holder_that_has_lost_its_parent_is_waited_for(tmp_path):
    """As after a kill of the supervisor: the training process, which has the lock, ends a moment later."""
    arguments = [sys.executable, "-c", HOLD_IN_CHILD, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        with pytest.raises(UsageError, match="another process"), lock.locked(tmp_path):
            pass
        process.kill()
        process.wait()
        with lock.locked(tmp_path):
            assert f"pid {os.getpid()} " in (tmp_path / "lock").read_text()


def test_holder_is_alive_after_the_clock_was_set(tmp_path, monkeypatch):
    with lock.locked(tmp_path):
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: 1e9)  # the clock of the machine less its uptime
        monkeypatch.setattr(psutil._pslinux, "BOOT_TIME", 1e9, raising=False)
        assert lock.is_holder_alive(tmp_path) is True
        assert inspect_lock(tmp_path).process_status


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_lock_that_is_no_file_is_an_error(tmp_path, make):
    make(tmp_path / "lock")
    with pytest.raises(UsageError, match="lock"), lock.locked(tmp_path):
        pass


def test_holder_without_a_possible_process_does_not_hold(filesystem, tmp_path):
    (tmp_path / "lock").write_text(f"pid {10**30} on {os.uname().nodename}, begun {10**30}")
    with lock.locked(tmp_path):
        pass


def test_holder_is_alive_dead_or_unknown(tmp_path):
    assert lock.is_holder_alive(tmp_path) is None
    with lock.locked(tmp_path):
        assert lock.is_holder_alive(tmp_path) is True
    assert lock.is_holder_alive(tmp_path) is None
    (tmp_path / "lock").write_text(f"pid {os.getpid()} on {os.uname().nodename}, begun 1\n")
    assert lock.is_holder_alive(tmp_path) is False
    (tmp_path / "lock").write_text("pid 1 on elsewhere, begun 1\n")
    assert lock.is_holder_alive(tmp_path) is None
    # Another container of this machine has the same name, and other processes with the same numbers.
    boot, namespace, start = process_identity(os.getpid()).split(".")
    name = f"pid {os.getpid()} on {os.uname().nodename}, begun 1, process"
    for identity, is_alive in (
        (f"{boot}.{namespace}.{start}", True),
        (f"{boot}.{namespace}.{int(start) + 1}", False),
        (f"{boot}.{int(namespace) + 1}.{start}", None),
        (f"00000000.{namespace}.{start}", False),  # the machine was started again
    ):
        (tmp_path / "lock").write_text(f"{name} {identity}\n")
        assert lock.is_holder_alive(tmp_path) is is_alive
    (tmp_path / "lock").unlink()
    os.mkfifo(tmp_path / "lock")
    assert lock.is_holder_alive(tmp_path) is None
