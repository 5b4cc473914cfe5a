"""Atomic replacement of a set of files: any failure or kill leaves the old set or the new one."""

import errno
import json
import os
import shutil
import stat
from contextlib import suppress

import pytest
import torch

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint import fileset
from shoestring.training.checkpoint.files import sha256
from shoestring.training.checkpoint.fileset import complete_replacement, open_verified, replace_weights, staged_path
from shoestring.training.checkpoint.manifest import MANIFEST, DamagedFileError, add_digest, read_manifest
from shoestring.training.checkpoint.tensors import serialize
from tests.slow import slow_except
from tests.training.checkpoint.faults import KINDS, Disk, Killed, failing, killing

NAMES = ["adapter_model.safetensors", "model.safetensors"]
OLD, NEW = 1, 2


@pytest.fixture(autouse=True)
def skip_fsync(monkeypatch):
    """Thousands of saves: each `fsync` is counted and may fail, but does not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def save(folder, value):
    weight = {"weight": torch.full((8, 8), float(value))}
    replace_weights(folder, {name: serialize(weight, {}) for name in NAMES}, value)


def read(folder):
    """Return the value that all files and the manifest have in common; None if there is no set."""
    if not fileset.has_manifest(folder):
        return None
    (value,) = {int(open_verified(folder, name)["weight"][0, 0]) for name in NAMES}
    assert read_manifest(folder).update == value
    return value


def interrupt_save(folder, value, number):
    """Save, but kill the save at operation `number`."""
    with Disk(folder, killing(number)).watching(), pytest.raises(Killed):
        save(folder, value)


def operations(folder):
    disk = Disk(folder)
    with disk.watching():
        save(folder, NEW)
    return disk.operations


def commit_index(names):
    return names.index("replace .manifest.json.next")


def empty(folder):
    folder.mkdir()


def old(folder):
    empty(folder)
    save(folder, OLD)


def unfinished(folder):
    """The old set, and most of another that was not committed."""
    old(folder)
    shutil.copytree(folder, copy := folder.with_name("copy"))
    interrupt_save(folder, 7, commit_index(operations(copy)))
    shutil.rmtree(copy)
    assert staged_path(folder, MANIFEST).exists()


def unnamed(folder):
    """The old set, committed but with no file renamed yet: the final names are those of an earlier set."""
    empty(folder)
    save(folder, 7)
    shutil.copytree(folder, copy := folder.with_name("copy"))
    interrupt_save(folder, OLD, commit_index(operations(copy)) + 1)
    shutil.rmtree(copy)
    assert all(staged_path(folder, name).exists() for name in NAMES)


def half_named(folder):
    """The state `unnamed` with one of the files renamed."""
    unnamed(folder)
    staged_path(folder, NAMES[0]).replace(folder / NAMES[0])


STATES = {state.__name__: state for state in (empty, old, unfinished, unnamed, half_named)}


def prepare(folder, state):
    original = folder.with_name(state)
    if not original.exists():
        STATES[state](original)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    return folder


def listing(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def check(folder, before, expected=None):
    """Check that one set is complete, that reading writes nothing, and that the next save leaves only its own files."""
    listing_before = listing(folder)
    value = read(folder)
    assert listing(folder) == listing_before
    assert value in (before, NEW) if expected is None else value == expected
    complete_replacement(folder)
    assert read(folder) == value
    save(folder, 9)
    assert sorted(path.name for path in folder.iterdir()) == [*NAMES[:1], MANIFEST, *NAMES[1:]]
    assert read(folder) == 9
    assert all((folder / name).stat().st_size == entry.bytes for name, entry in read_manifest(folder).files.items())


@pytest.mark.parametrize("state", STATES)
def test_kill_at_any_operation_leaves_one_complete_set(tmp_path, state):
    before = read(prepare(tmp_path / "set", state))
    names = operations(tmp_path / "set")
    assert {"open", "write", "read", "fsync", "close", "stat"} <= {name.split()[0] for name in names}
    committed = commit_index(names)
    for number in range(len(names)):
        folder = prepare(tmp_path / "set", state)
        interrupt_save(folder, NEW, number)
        check(folder, before, NEW if number > committed else before)


def test_each_step_is_synced_before_the_next(tmp_path):
    """Otherwise a power failure could leave a manifest whose files are missing."""
    folder = prepare(tmp_path / "set", "old")
    names = [name for name in operations(folder) if name.split()[0] in ("fsync", "replace")]
    new = [f".{name}.next" for name in NAMES]
    assert names == [
        *(f"fsync {name}" for name in (*new, ".manifest.json.next", "set")),
        *("replace .manifest.json.next", "fsync set"),
        *(f"replace {name}" for name in new),
        "fsync set",
    ]
    folder = prepare(tmp_path / "set", "unnamed")
    first, *renames, last = [name for name in operations(folder) if name.split()[0] in ("fsync", "replace")][:4]
    assert (first, sorted(renames), last) == ("fsync set", [f"replace {name}" for name in new], "fsync set")


@pytest.mark.parametrize("error", slow_except(KINDS, "no space"))
@pytest.mark.parametrize("state", slow_except(list(STATES), "empty", "old", "unnamed"))
def test_failure_of_any_operation_leaves_one_complete_set(tmp_path, state, error):
    before = read(prepare(tmp_path / "set", state))
    names = operations(tmp_path / "set")
    committed, failed = commit_index(names), 0
    for number in range(len(names)):
        folder = prepare(tmp_path / "set", state)
        with Disk(folder, failing(number, error)).watching():
            try:
                save(folder, NEW)
                raised = False
            except OSError:
                raised = True
        failed += raised
        if raised and number <= committed:
            # The files of the new set that were written are removed, unless they existed before.
            leftovers = {path.name for path in folder.iterdir()} - {MANIFEST, *NAMES}
            assert not leftovers or state in ("unfinished", "unnamed", "half_named"), (names[number], leftovers)
        check(folder, before, before if raised and number <= committed else NEW)
    assert failed >= 0.6 * len(names)


def test_kill_during_cleanup_after_failed_save(tmp_path):
    names = operations(prepare(tmp_path / "set", "unnamed"))
    for number in range(0, len(names), 3):
        for delay in (1, 2, 4, 7, 11):
            folder = prepare(tmp_path / "set", "unnamed")

            def strike(index, name, path, number=number, delay=delay):
                if index == number:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                if index >= number + delay:
                    raise Killed

            with Disk(folder, strike).watching(), suppress(OSError, Killed):
                save(folder, NEW)
            check(folder, OLD)


@pytest.mark.parametrize("state", ["old", "unfinished", "unnamed", "half_named"])
@pytest.mark.parametrize("saves", [1, 2])
def test_reader_during_saves_gets_one_complete_set(tmp_path, state, saves):
    """Another process saves at each operation of the reader; tensors that are already mapped do not change."""
    folder = prepare(tmp_path / "set", state)
    disk = Disk(folder)
    with disk.watching():
        open_verified(folder, NAMES[1])
    for number in range(len(disk.operations)):
        folder = prepare(tmp_path / "set", state)

        pending = [NEW, 3][:saves]

        def strike(index, name, path, folder=folder, number=number, pending=pending):
            while index == number and pending:
                save(folder, pending.pop(0))

        disk = Disk(folder, strike)
        with disk.watching():
            file = open_verified(folder, NAMES[1])
        save(folder, 9)
        weight = file["weight"]
        save(folder, 10)
        assert float(weight.min()) == float(weight.max())
        assert float(weight[0, 0]) in (OLD, NEW, 3), disk.operations[number]


def test_set_saved_during_verification_is_verified_too(tmp_path):
    folder = prepare(tmp_path / "set", "old")
    disk = Disk(folder)
    with disk.watching():
        open_verified(folder, NAMES[1])
    outcomes = set()
    for number in range(len(disk.operations)):
        folder = prepare(tmp_path / "set", "old")
        pending = [NEW]

        def strike(index, name, path, folder=folder, number=number, pending=pending):
            while index == number and pending:
                save(folder, pending.pop())
                flip_bit(folder / NAMES[1])

        with Disk(folder, strike).watching():
            try:
                outcomes.add(int(open_verified(folder, NAMES[1])["weight"][0, 0]))
            except DamagedFileError:
                outcomes.add("damaged")
    assert outcomes == {OLD, "damaged"}


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def replace_by_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "a flipped bit": (flip_bit, "digest does not match"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, "),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "bytes, "),
    "missing": (os.unlink, "it is missing"),
    "a link": (replace_by_link, "not a regular file"),
    "a pipe": (replace_by_pipe, "not a regular file"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_damage_to_any_file_is_detected(tmp_path, name, damage, reason):
    old(tmp_path / "set")
    damage(tmp_path / "set" / name)
    for opened_name in NAMES:
        with pytest.raises(DamagedFileError, match=reason) as error:
            open_verified(tmp_path / "set", opened_name)
        assert error.value.file == name


@pytest.mark.parametrize("damage", [value[0] for key, value in DAMAGE.items() if key != "missing"])
def test_damaged_manifest_is_detected(tmp_path, damage):
    old(tmp_path / "set")
    damage(tmp_path / "set" / MANIFEST)
    with pytest.raises(DamagedFileError) as error:
        open_verified(tmp_path / "set", NAMES[0])
    assert error.value.file == MANIFEST


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/hostname")])
@pytest.mark.parametrize("name", [*NAMES, MANIFEST])
def test_obstacle_at_staged_path_is_not_followed(tmp_path, make, name):
    old(tmp_path / "set")
    make(staged_path(tmp_path / "set", name))
    assert read(tmp_path / "set") == OLD
    save(tmp_path / "set", NEW)
    assert read(tmp_path / "set") == NEW
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in (tmp_path / "set").iterdir())


def test_only_leftovers_of_version_0_1_0_are_removed(tmp_path):
    save(tmp_path, OLD)
    (tmp_path / ".model.safetensors.4711").write_bytes(b"half")
    (tmp_path / ".adapter_config.json.12").write_bytes(b"half")
    unrelated = ["notes.txt", ".hidden", ".notes.txt.next", "model.safetensors.next", ".model.safetensors.bak"]
    for name in unrelated:
        (tmp_path / name).write_text("mine")
    (tmp_path / "update-00000003").mkdir()
    save(tmp_path, NEW)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {*NAMES, MANIFEST, "update-00000003", *unrelated}


def test_files_of_later_format_are_not_modified(tmp_path):
    unnamed(tmp_path / "set")
    value = add_digest({"format": 4, "anything": 1})
    (tmp_path / "set" / MANIFEST).write_text(json.dumps(value))
    before = {path.name: sha256(path) for path in (tmp_path / "set").iterdir()}
    for attempt in (lambda: save(tmp_path / "set", NEW), lambda: open_verified(tmp_path / "set", NAMES[0])):
        with pytest.raises(CheckpointError, match="has format 4"):
            attempt()
    assert {path.name: sha256(path) for path in (tmp_path / "set").iterdir()} == before
