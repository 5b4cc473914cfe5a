"""A set of files replaced as one: whatever fails, and wherever a process ends, there is the old set or the new one."""

import errno
import json
import os
import shutil
import stat
from contextlib import suppress

import pytest
import torch

from shoestring.checkpoint import fileset
from shoestring.checkpoint.files import sha256
from shoestring.checkpoint.fileset import open_verified, replace_weights, settle, staged
from shoestring.checkpoint.manifest import MANIFEST, Damaged, read_manifest, signed
from shoestring.checkpoint.tensors import pieces
from shoestring.errors import CheckpointError
from tests.checkpoint.faults import KINDS, Disk, Killed, failing, killing

NAMES = ["adapter_model.safetensors", "model.safetensors"]
OLD, NEW = 1, 2


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Thousands of saves: each wait for the disk is counted, and may fail, but is not waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def save(folder, value):
    weight = {"weight": torch.full((8, 8), float(value))}
    replace_weights(folder, {name: pieces(weight, {}) for name in NAMES}, value)


def read(folder):
    """The value of all files and of the manifest, which is one; None where no set was ever there."""
    if not fileset.has_manifest(folder):
        return None
    (value,) = {int(open_verified(folder, name)["weight"][0, 0]) for name in NAMES}
    assert read_manifest(folder).update == value
    return value


def interrupted(folder, value, at):
    """Save until operation `at`, and no further."""
    with Disk(folder, killing(at)).watching(), pytest.raises(Killed):
        save(folder, value)


def operations(folder):
    disk = Disk(folder)
    with disk.watching():
        save(folder, NEW)
    return disk.done


def commit(names):
    return names.index("replace .manifest.json.next")


def nothing(folder):
    folder.mkdir()


def old(folder):
    nothing(folder)
    save(folder, OLD)


def unfinished(folder):
    """The old set, and beside it most of one that nobody has committed."""
    old(folder)
    shutil.copytree(folder, other := folder.with_name("other"))
    interrupted(folder, 7, commit(operations(other)))
    shutil.rmtree(other)
    assert staged(folder, MANIFEST).exists()


def unnamed(folder):
    """The old set committed, none of whose files has its name: they are those of a set before."""
    nothing(folder)
    save(folder, 7)
    shutil.copytree(folder, other := folder.with_name("other"))
    interrupted(folder, OLD, commit(operations(other)) + 1)
    shutil.rmtree(other)
    assert all(staged(folder, name).exists() for name in NAMES)


def half_named(folder):
    """As `unnamed`, but one of the files has its name."""
    unnamed(folder)
    staged(folder, NAMES[0]).replace(folder / NAMES[0])


STATES = {state.__name__: state for state in (nothing, old, unfinished, unnamed, half_named)}


def ready(place, state):
    original = place.with_name(state)
    if not original.exists():
        STATES[state](original)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(original, place)
    return place


def listing(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


def check(folder, before, expected=None):
    """There is one set whole; reading it writes nothing, and the next save leaves only its own files."""
    beforehand = listing(folder)
    value = read(folder)
    assert listing(folder) == beforehand
    assert value in (before, NEW) if expected is None else value == expected
    settle(folder)
    assert read(folder) == value
    save(folder, 9)
    assert sorted(path.name for path in folder.iterdir()) == [*NAMES[:1], MANIFEST, *NAMES[1:]]
    assert read(folder) == 9
    assert all((folder / name).stat().st_size == entry.bytes for name, entry in read_manifest(folder).files.items())


@pytest.mark.parametrize("state", STATES)
def test_a_process_that_ends_anywhere_leaves_the_old_set_or_the_new_one(tmp_path, state):
    before = read(ready(tmp_path / "set", state))
    names = operations(tmp_path / "set")
    assert {"open", "write", "read", "fsync", "close", "stat"} <= {name.split()[0] for name in names}
    committed = commit(names)
    for number in range(len(names)):
        folder = ready(tmp_path / "set", state)
        interrupted(folder, NEW, number)
        check(folder, before, NEW if number > committed else before)


def test_each_step_is_on_the_disk_before_the_next(tmp_path):
    """Or a power failure could leave the manifest of files that are not there."""
    folder = ready(tmp_path / "set", "old")
    names = [name for name in operations(folder) if name.split()[0] in ("fsync", "replace")]
    new = [f".{name}.next" for name in NAMES]
    assert names == [
        *(f"fsync {name}" for name in (*new, ".manifest.json.next", "set")),
        *("replace .manifest.json.next", "fsync set"),
        *(f"replace {name}" for name in new),
        "fsync set",
    ]
    folder = ready(tmp_path / "set", "unnamed")
    before, *put_right, after = [name for name in operations(folder) if name.split()[0] in ("fsync", "replace")][:4]
    assert (before, sorted(put_right), after) == ("fsync set", [f"replace {name}" for name in new], "fsync set")


@pytest.mark.parametrize("error", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("state", STATES)
def test_whatever_fails_there_is_the_old_set_or_the_new_one(tmp_path, state, error):
    before = read(ready(tmp_path / "set", state))
    names = operations(tmp_path / "set")
    committed, failed = commit(names), 0
    for number in range(len(names)):
        folder = ready(tmp_path / "set", state)
        with Disk(folder, failing(number, error)).watching():
            try:
                save(folder, NEW)
                raised = False
            except OSError:
                raised = True
        failed += raised
        if raised and number <= committed:
            # What was written of the new set takes no room any more, unless it was there to begin with.
            left = {path.name for path in folder.iterdir()} - {MANIFEST, *NAMES}
            assert not left or state in ("unfinished", "unnamed", "half_named"), (names[number], left)
        check(folder, before, before if raised and number <= committed else NEW)
    assert failed >= 0.6 * len(names)


def test_a_save_that_fails_and_a_process_that_ends_while_it_cleans_up(tmp_path):
    names = operations(ready(tmp_path / "set", "unnamed"))
    for number in range(0, len(names), 3):
        for more in (1, 2, 4, 7, 11):
            folder = ready(tmp_path / "set", "unnamed")

            def strike(at, name, path, number=number, more=more):
                if at == number:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                if at >= number + more:
                    raise Killed

            with Disk(folder, strike).watching(), suppress(OSError, Killed):
                save(folder, NEW)
            check(folder, OLD)


@pytest.mark.parametrize("state", ["old", "unfinished", "unnamed", "half_named"])
@pytest.mark.parametrize("saves", [1, 2])
def test_who_reads_while_another_saves_has_one_of_the_sets_whole(tmp_path, state, saves):
    """At each operation of the reader another process saves; what it had mapped stays as it was."""
    folder = ready(tmp_path / "set", state)
    disk = Disk(folder)
    with disk.watching():
        open_verified(folder, NAMES[1])
    for number in range(len(disk.done)):
        folder = ready(tmp_path / "set", state)

        pending = [NEW, 3][:saves]

        def strike(at, name, path, folder=folder, number=number, pending=pending):
            while at == number and pending:
                save(folder, pending.pop(0))

        disk = Disk(folder, strike)
        with disk.watching():
            opened = open_verified(folder, NAMES[1])
        save(folder, 9)
        weight = opened["weight"]
        save(folder, 10)
        assert float(weight.min()) == float(weight.max())
        assert float(weight[0, 0]) in (OLD, NEW, 3), disk.done[number]


def test_what_was_saved_since_it_was_looked_at_is_looked_at_too(tmp_path):
    folder = ready(tmp_path / "set", "old")
    disk = Disk(folder)
    with disk.watching():
        open_verified(folder, NAMES[1])
    found = set()
    for number in range(len(disk.done)):
        folder = ready(tmp_path / "set", "old")
        pending = [NEW]

        def strike(at, name, path, folder=folder, number=number, pending=pending):
            while at == number and pending:
                save(folder, pending.pop())
                spoilt(folder / NAMES[1])

        with Disk(folder, strike).watching():
            try:
                found.add(int(open_verified(folder, NAMES[1])["weight"][0, 0]))
            except Damaged:
                found.add("damaged")
    assert found == {OLD, "damaged"}


def spoilt(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def linked(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def piped(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "a flipped bit": (spoilt, "not those that were written"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, "),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "bytes, "),
    "missing": (os.unlink, "it is not there"),
    "a link": (linked, "not a regular file"),
    "a pipe": (piped, "not a regular file"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("damage", "why"), DAMAGE.values(), ids=DAMAGE)
def test_damage_to_any_file_of_the_set_is_found_whichever_is_opened(tmp_path, name, damage, why):
    old(tmp_path / "set")
    damage(tmp_path / "set" / name)
    for opened in NAMES:
        with pytest.raises(Damaged, match=why) as found:
            open_verified(tmp_path / "set", opened)
        assert found.value.file == name


@pytest.mark.parametrize("damage", [value[0] for key, value in DAMAGE.items() if key != "missing"])
def test_a_damaged_manifest_is_found(tmp_path, damage):
    old(tmp_path / "set")
    damage(tmp_path / "set" / MANIFEST)
    with pytest.raises(Damaged) as found:
        open_verified(tmp_path / "set", NAMES[0])
    assert found.value.file == MANIFEST


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/hostname")])
@pytest.mark.parametrize("name", [*NAMES, MANIFEST])
def test_what_lies_in_the_way_of_a_new_file_is_not_followed(tmp_path, make, name):
    old(tmp_path / "set")
    make(staged(tmp_path / "set", name))
    assert read(tmp_path / "set") == OLD
    save(tmp_path / "set", NEW)
    assert read(tmp_path / "set") == NEW
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in (tmp_path / "set").iterdir())


def test_what_version_0_1_0_left_is_removed_and_nothing_else_is(tmp_path):
    save(tmp_path, OLD)
    (tmp_path / ".model.safetensors.4711").write_bytes(b"half")
    (tmp_path / ".adapter_config.json.12").write_bytes(b"half")
    others = ["notes.txt", ".hidden", ".notes.txt.next", "model.safetensors.next", ".model.safetensors.bak"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / "update-00000003").mkdir()
    save(tmp_path, NEW)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*NAMES, MANIFEST, "update-00000003", *others}


def test_files_of_a_later_format_are_not_touched(tmp_path):
    unnamed(tmp_path / "set")
    value = signed({"format": 3, "anything": 1})
    (tmp_path / "set" / MANIFEST).write_text(json.dumps(value))
    before = {path.name: sha256(path) for path in (tmp_path / "set").iterdir()}
    for attempt in (lambda: save(tmp_path / "set", NEW), lambda: open_verified(tmp_path / "set", NAMES[0])):
        with pytest.raises(CheckpointError, match="of format 3"):
            attempt()
    assert {path.name: sha256(path) for path in (tmp_path / "set").iterdir()} == before
