"""One process at a time, also where the filesystem has no locks."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from shoestring.errors import UsageError
from shoestring.session import lock

HOLD = """
import sys
from pathlib import Path
from shoestring.session.lock import locked
with locked(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["flock", "none"])
def system(request, monkeypatch):
    """A filesystem with locks, and one that refuses to make any."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if request.param == "none":
        monkeypatch.setattr(fcntl, "flock", refuse)
    return request.param


def test_a_living_holder_is_named_and_a_dead_one_does_not_count(system, tmp_path):
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


def test_without_locks_a_holder_elsewhere_is_believed(system, tmp_path):
    (tmp_path / "lock").write_text("pid 1 on elsewhere, begun 5\n")
    if system == "flock":
        with lock.locked(tmp_path):
            return
    with pytest.raises(UsageError, match="pid 1 on elsewhere") as refused, lock.locked(tmp_path):
        pass
    assert "if it is gone, remove" in refused.value.hint


def test_a_process_that_was_given_a_dead_ones_number_is_not_the_holder(tmp_path, monkeypatch):
    (tmp_path / "lock").write_text(f"pid {os.getpid()} on {os.uname().nodename}, begun 5\n")
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSYS, "none")))
    with lock.locked(tmp_path):
        pass


def test_an_error_that_is_no_lack_of_locks_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"), lock.locked(tmp_path):
        pass


def test_a_forked_child_does_not_hold_the_lock_of_a_process_that_was_killed(tmp_path):
    """Such as the one that traces an update while a run is planned."""
    code = (
        "import os, signal, sys, time; from pathlib import Path; from shoestring.session.lock import locked\n"
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
