"""Every operation on the disk made to fail in turn, and real disks that are full."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoestring.checkpoint.store import Store
from shoestring.errors import CheckpointError
from tests.checkpoint.faults import KINDS, Disk, failing


def state(value):
    return {"model": {"weight": torch.full((8, 8), float(value))}, "progress": {"update": value}}


def two_saved(folder):
    """A store whose next save writes a checkpoint and removes another, each verified."""
    store = Store(folder, keep=2)
    for update in (1, 2):
        store.save(update, state(update))
    return store


def error_of(store, update):
    try:
        store.save(update, state(30))
    except CheckpointError as error:
        return error
    return None


def operations(folder, update):
    disk = Disk(folder)
    store = two_saved(folder)
    with disk.watching():
        store.save(update, state(30))
    return disk.done


@pytest.mark.parametrize("error", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("update", [3, 2], ids=["new", "of the same update"])
def test_whatever_fails_there_are_as_many_whole_checkpoints_as_before(tmp_path, error, update):
    names = operations(tmp_path / "once", update)
    assert {"open", "write", "fsync", "rename", "mkdir", "lstat", "read", "unlink", "rmdir"} <= {
        name.split()[0] for name in names
    }
    failed = 0
    for number in range(len(names)):
        folder = tmp_path / str(number)
        store = two_saved(folder)
        with Disk(folder, failing(number, error)).watching():
            told = error_of(store, update)
        saved = told is None
        failed += not saved
        if told:
            assert "could not be written" in told.message
            assert str(folder / "update-00000002") in told.hint
        again = Store(folder, keep=2)
        newest = again.load()
        reached = newest.update, float(newest.state["model"]["weight"][0, 0])
        # After it has its name, only the sync of the directory can fail: then the new one may be there or not.
        named = number > names.index(f"rename .writing-{update:08d}-{os.getpid()}")
        assert reached == (update, 30) if saved or named else (2, 2), names[number]
        assert len(again.updates()) >= 2, names[number]
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".")], names[number]
        again.save(9, state(9))
        assert again.updates()[-1] == 9
        shutil.rmtree(folder)
    # What may fail and the checkpoint is there all the same: forgetting the pages, and what comes after its name.
    assert failed >= 0.6 * len(names)


def test_bytes_that_are_not_those_written_are_found_on_reading_back(tmp_path):
    store = two_saved(tmp_path)
    before = os.write

    def wrong(descriptor, data):
        return before(descriptor, bytes(data)[:-1] + b"?") if len(data) == 256 else before(descriptor, data)

    os.write = wrong
    try:
        with pytest.raises(CheckpointError, match="other bytes were read back"):
            store.save(3, state(3))
    finally:
        os.write = before
    assert store.updates() == [1, 2]


def test_on_a_full_disk_what_is_expendable_goes_first_the_oldest_of_it(tmp_path):
    spare = [tmp_path / "light" / name for name in ("a", "b", "c")]
    for path in spare:
        path.mkdir(parents=True)
    store = Store(tmp_path / "checkpoints", expendable=lambda: spare)
    store.save(1, state(1))

    def full(number, name, path):
        if name == "write" and spare[1].exists():
            raise OSError(errno.ENOSPC, "No space left on device")

    with Disk(tmp_path, full).watching():
        store.save(2, state(2))
    assert [path.exists() for path in spare] == [False, False, True]
    assert store.updates() == [1, 2]


def test_what_cannot_be_written_for_another_reason_costs_nothing_expendable(tmp_path):
    spare = tmp_path / "light"
    spare.mkdir()
    store = Store(tmp_path / "checkpoints", expendable=lambda: [spare])

    def broken(number, name, path):
        if name == "write":
            raise OSError(errno.EIO, "Input/output error")

    with Disk(tmp_path, broken).watching(), pytest.raises(CheckpointError, match="Input/output"):
        store.save(1, state(1))
    assert spare.exists()


FILL = """
import json, resource, sys
from pathlib import Path
import torch
from shoestring.checkpoint.store import Store
from shoestring.errors import CheckpointError

root, kind = Path(sys.argv[1]), sys.argv[2]
def state(update, size):
    return {"model": {"weight": torch.full((size, 1024), float(update))}}
store = Store(root / "checkpoints")
for update in (1, 2):
    store.save(update, state(update, 64))  # 256 KiB each
told = []
if kind == "limit":
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
else:
    (root / "other").write_bytes(bytes(2_300_000))  # of 4 MiB; the account must not be what finds it
    store._require_space = lambda need: None
try:
    store.save(3, state(3, 512))  # 2 MiB
except CheckpointError as error:
    told.append(str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.getrlimit(resource.RLIMIT_FSIZE)[1])) if kind != "limit" else 0
again = Store(root / "checkpoints")
newest = again.load()
print(json.dumps({
    "told": told, "updates": again.updates(), "value": float(newest.state["model"]["weight"][0, 0]),
    "left": sorted(path.name for path in (root / "checkpoints").iterdir()),
}))
"""


def filled(command, root, kind):
    ended = subprocess.run([*command, sys.executable, "-c", FILL, str(root), kind], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_real_disk_is_full(tmp_path):
    """A file system of 4 MiB in memory, mounted where nobody else sees it."""
    mount = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs -o size=4m none "$0" && exec "$@"']
    command = [*mount, str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this system lets no user mount a file system of its own")
    found = filled(command, tmp_path, "disk")
    assert "No space left on device" in found["told"][0]
    assert str(Path("checkpoints") / "update-00000002") in found["told"][0]
    assert found["updates"] == [1, 2]
    assert found["value"] == 2.0
    assert found["left"] == ["update-00000001", "update-00000002"]


def test_a_real_limit_on_the_size_of_files(tmp_path):
    found = filled([], tmp_path, "limit")
    assert "File too large" in found["told"][0]
    assert found["left"] == ["update-00000001", "update-00000002"]
    assert found["value"] == 2.0
