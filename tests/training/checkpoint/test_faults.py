"""Saves with each disk operation failing in turn, and on real full disks."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.store import Store
from tests.slow import slow_except
from tests.training.checkpoint.faults import KINDS, Disk, failing


def state(value):
    return {"model": {"weight": torch.full((8, 8), float(value))}, "progress": {"update": value}}


def store_with_two_checkpoints(folder):
    """Return a store whose next save writes a checkpoint and removes another."""
    store = Store(folder, keep=2)
    for update in (1, 2):
        store.save(update, state(update))
    return store


def save_error(store, update):
    try:
        store.save(update, state(30))
    except CheckpointError as error:
        return error
    return None


def operations(folder, update):
    disk = Disk(folder)
    store = store_with_two_checkpoints(folder)
    with disk.watching():
        store.save(update, state(30))
    return disk.operations


@pytest.mark.parametrize("error", slow_except(KINDS, "no space"))
@pytest.mark.parametrize("update", [3, 2], ids=["new", "of the same update"])
def test_failed_operation_loses_no_complete_checkpoint(tmp_path, error, update):
    names = operations(tmp_path / "once", update)
    assert {"open", "write", "fsync", "rename", "mkdir", "lstat", "read", "unlink", "rmdir"} <= {
        name.split()[0] for name in names
    }
    failed = 0
    for number in range(len(names)):
        folder = tmp_path / str(number)
        store = store_with_two_checkpoints(folder)
        with Disk(folder, failing(number, error)).watching():
            error_raised = save_error(store, update)
        saved = error_raised is None
        failed += not saved
        if error_raised:
            assert "could not be written" in error_raised.message
            assert str(folder / "update-00000002") in error_raised.hint
        reopened = Store(folder, keep=2)
        newest = reopened.load()
        restored = newest.update, float(newest.state["model"]["weight"][0, 0])
        # After the rename only the sync of the directory can fail: then the new checkpoint may exist or not.
        renamed = number > names.index(f"rename .writing-{update:08d}-{os.getpid()}")
        assert restored == (update, 30) if saved or renamed else (2, 2), names[number]
        assert len(reopened.updates()) >= 2, names[number]
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".")], names[number]
        reopened.save(9, state(9))
        assert reopened.updates()[-1] == 9
        shutil.rmtree(folder)
    # The save succeeds although dropping the page cache fails, or an operation after the rename.
    assert failed >= 0.55 * len(names)


def test_corrupted_write_is_detected_on_reading_back(tmp_path):
    store = store_with_two_checkpoints(tmp_path)
    original_write = os.write

    def corrupting_write(descriptor, data):
        return original_write(descriptor, bytes(data)[:-1] + b"?" if len(data) == 256 else data)

    os.write = corrupting_write
    try:
        with pytest.raises(CheckpointError, match="bytes read back differ"):
            store.save(3, state(3))
    finally:
        os.write = original_write
    assert store.updates() == [1, 2]


def test_full_disk_removes_oldest_expendable_paths_first(tmp_path):
    expendable = [tmp_path / "light" / f"update-0000000{number}" for number in (1, 2, 3)]
    for path in expendable:
        path.mkdir(parents=True)
    store = Store(tmp_path / "checkpoints", expendable=lambda: expendable)
    store.save(1, state(1))

    def fail_write(number, name, path):
        if name == "write" and expendable[1].exists():
            raise OSError(errno.ENOSPC, "No space left on device")

    with Disk(tmp_path, fail_write).watching():
        store.save(2, state(2))
    assert [path.exists() for path in expendable] == [False, False, True]
    assert store.updates() == [1, 2]


def test_other_write_errors_remove_nothing_expendable(tmp_path):
    light = tmp_path / "light"
    light.mkdir()
    store = Store(tmp_path / "checkpoints", expendable=lambda: [light])

    def fail_write(number, name, path):
        if name == "write":
            raise OSError(errno.EIO, "Input/output error")

    with Disk(tmp_path, fail_write).watching(), pytest.raises(CheckpointError, match="Input/output"):
        store.save(1, state(1))
    assert light.exists()


FILL = """
import json, resource, sys
from pathlib import Path
import torch
from shoestring.training.checkpoint.store import Store
from shoestring.base.errors import CheckpointError

root, kind = Path(sys.argv[1]), sys.argv[2]
def state(update, size):
    return {"model": {"weight": torch.full((size, 1024), float(update))}}
store = Store(root / "checkpoints")
for update in (1, 2):
    store.save(update, state(update, 64))  # 256 KiB each
messages = []
if kind == "limit":
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
else:
    (root / "other").write_bytes(bytes(2_300_000))  # of 4 MiB; the check of free space must not detect it first
    store._require_space = lambda required_bytes: None
try:
    store.save(3, state(3, 512))  # 2 MiB
except CheckpointError as error:
    messages.append(str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.getrlimit(resource.RLIMIT_FSIZE)[1])) if kind != "limit" else 0
reopened = Store(root / "checkpoints")
newest = reopened.load()
print(json.dumps({
    "messages": messages, "updates": reopened.updates(), "value": float(newest.state["model"]["weight"][0, 0]),
    "names": sorted(path.name for path in (root / "checkpoints").iterdir()),
}))
"""


def save_on_full_disk(command, root, kind):
    process = subprocess.run([*command, sys.executable, "-c", FILL, str(root), kind], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_real_full_disk(tmp_path):
    """The disk is a tmpfs of 4 MiB in a mount namespace of its own."""
    mount = ["unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs -o size=4m none "$0" && exec "$@"']
    command = [*mount, str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this system does not allow users to mount file systems")
    result = save_on_full_disk(command, tmp_path, "disk")
    assert "No space left on device" in result["messages"][0]
    assert str(Path("checkpoints") / "update-00000002") in result["messages"][0]
    assert result["updates"] == [1, 2]
    assert result["value"] == 2.0
    assert result["names"] == ["update-00000001", "update-00000002"]


@pytest.mark.slow
def test_real_limit_on_file_size(tmp_path):
    result = save_on_full_disk([], tmp_path, "limit")
    assert "File too large" in result["messages"][0]
    assert result["names"] == ["update-00000001", "update-00000002"]
    assert result["value"] == 2.0
