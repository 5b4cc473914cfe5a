"""A file that is replaced on a full disk, also a real one."""

import errno
import shutil
import subprocess
import sys

import pytest

from shoestring.training.checkpoint.reserved import release, replace_text, reserve, reserve_of
from tests.training.checkpoint.faults import Disk


def test_file_is_replaced_without_a_new_file_or_block(tmp_path):
    path = tmp_path / "state.json"
    path.write_text("old")
    reserve(path, 5000)
    assert reserve_of(path).stat().st_size == 8192

    def fail(number, name, file):
        if name in ("open", "write") and file.endswith(".state.json.reserve") is False:
            raise OSError(errno.ENOSPC, "No space left on device", file)

    with Disk(tmp_path, fail).watching():
        replace_text(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
    assert path.read_text() == "new"
    with Disk(tmp_path, fail).watching(), pytest.raises(OSError, match="No space left"):
        replace_text(path, "without a reserve")
    assert path.read_text() == "new"


def test_reserve_is_reused_and_released(tmp_path):
    path = tmp_path / "state.json"
    reserve(path, 1)
    inode = reserve_of(path).stat().st_ino
    reserve(path, 4097)
    assert (reserve_of(path).stat().st_ino, reserve_of(path).stat().st_size) == (inode, 8192)
    release(path)
    release(path)
    assert not list(tmp_path.iterdir())


FULL_DISK = """
import sys
from pathlib import Path
from shoestring.training.checkpoint.reserved import replace_text, reserve

path = Path(sys.argv[1]) / "state.json"
path.write_text("old")
reserve(path, 9000)
try:
    for number in range(10_000):
        (path.parent / f"fill{number}").write_bytes(bytes(65536) if sys.argv[2] == "blocks" else b"")
except OSError:
    pass
replace_text(path, "new" * 3000)
assert path.read_text() == "new" * 3000
"""


@pytest.mark.parametrize("limit", ["blocks", "inodes"])
def test_real_full_disk(tmp_path, limit):
    mount = 'mount -t tmpfs -o size=1m,nr_inodes=64 none "$0" && exec "$@"'
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this system does not allow users to mount file systems")
    process = subprocess.run(
        [*command, sys.executable, "-c", FULL_DISK, str(tmp_path), limit], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
