"""Many processes at once at a directory whose filesystem has no locks, and that a dead process has left its name in."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from shoestring.errors import UsageError
from shoestring.session import lock

CONTEND = """
import errno, fcntl, os, sys, time
from pathlib import Path
from shoestring.errors import UsageError
from shoestring.session import lock

run, flock = Path(sys.argv[1]), fcntl.flock

def without(descriptor, how):
    if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(run)):
        raise OSError(errno.ENOLCK, "No locks available")
    flock(descriptor, how)

fcntl.flock = without
is_dead = lock._is_dead

def hesitating(holder):
    found = is_dead(holder)
    time.sleep(0.02)  # others look, too
    return found

lock._is_dead = hesitating
print(flush=True)
sys.stdin.readline()
try:
    with lock.locked(run):
        print("held", flush=True)
        sys.stdin.readline()
except UsageError:
    print("refused", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("left", [".lock", "lock", ""])
def test_of_many_that_find_a_dead_holder_one_takes_over(tmp_path, left):
    if left:
        (tmp_path / left).write_text(f"pid 4194303 on {os.uname().nodename}, begun 5\n")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    contenders = [subprocess.Popen([sys.executable, "-c", CONTEND, str(tmp_path)], **pipes) for _ in range(6)]
    for contender in contenders:
        contender.stdout.readline()
    for contender in contenders:
        contender.stdin.write("\n")
        contender.stdin.flush()
    found = [contender.stdout.readline().strip() for contender in contenders]
    for contender in contenders:
        contender.communicate("\n", timeout=30)
    assert sorted(found) == ["held", *["refused"] * 5]
    assert not (tmp_path / ".lock").exists()


def test_the_file_of_another_machine_is_believed_and_named(tmp_path, monkeypatch):
    (tmp_path / ".lock").write_text("pid 1 on elsewhere, begun 5\n")
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(UsageError, match="pid 1 on elsewhere") as refused, lock.locked(tmp_path):
        pass
    assert refused.value.hint.endswith(f"remove {tmp_path / '.lock'}")
