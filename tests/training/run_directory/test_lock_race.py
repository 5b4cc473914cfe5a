"""Several processes competing for a run on a filesystem without locks, after a holder has died."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from shoestring.base.errors import UsageError
from shoestring.training.run_directory import lock

CONTEND = """
import errno, fcntl, os, sys, time
from pathlib import Path
from shoestring.base.errors import UsageError
from shoestring.training.run_directory import lock

run, flock = Path(sys.argv[1]), fcntl.flock

def flock_without_support(descriptor, operation):
    if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(run)):
        raise OSError(errno.ENOLCK, "No locks available")
    flock(descriptor, operation)

fcntl.flock = flock_without_support
is_dead = lock._is_dead

def slow_is_dead(holder):
    dead = is_dead(holder)
    time.sleep(0.02)  # the other processes check, too
    return dead

lock._is_dead = slow_is_dead
print(flush=True)
sys.stdin.readline()
try:
    with lock.locked(run):
        print("locked", flush=True)
        sys.stdin.readline()
except UsageError:
    print("refused", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("leftover", [".lock", "lock", ""])
def test_only_one_process_takes_over_from_dead_holder(tmp_path, leftover):
    if leftover:
        (tmp_path / leftover).write_text(f"pid 4194303 on {os.uname().nodename}, begun 5\n")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    contenders = [subprocess.Popen([sys.executable, "-c", CONTEND, str(tmp_path)], **pipes) for _ in range(6)]
    for contender in contenders:
        contender.stdout.readline()
    for contender in contenders:
        contender.stdin.write("\n")
        contender.stdin.flush()
    outcomes = [contender.stdout.readline().strip() for contender in contenders]
    for contender in contenders:
        contender.communicate("\n", timeout=30)
    assert sorted(outcomes) == ["locked", *["refused"] * 5]
    assert not (tmp_path / ".lock").exists()


def test_lock_file_of_another_machine_is_respected(tmp_path, monkeypatch):
    (tmp_path / ".lock").write_text("pid 1 on elsewhere, begun 5\n")
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(UsageError, match="pid 1 on elsewhere") as error, lock.locked(tmp_path):
        pass
    assert error.value.hint.endswith(f"remove {tmp_path / '.lock'}")
