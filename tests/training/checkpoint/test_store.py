import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.files import sha256
from shoestring.training.checkpoint.manifest import add_digest, read_manifest
from shoestring.training.checkpoint.store import Store
from shoestring.training.checkpoint.weights import load_weights


def state(value):
    return {
        "model": {"weight": torch.full((8, 8), float(value))},
        "optimizer": {"state": {0: {"step": torch.tensor(float(value))}}, "param_groups": [{"betas": (0.9, 0.99)}]},
        "progress": {"update": value, "history": []},
    }


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1
    path.write_bytes(bytes(data))


def test_newest_checkpoint_round_trips(tmp_path):
    store = Store(tmp_path / "checkpoints")
    store.save(3, state(3))
    saved = store.save(12, state(12))
    restored = Store(tmp_path / "checkpoints").load()
    assert restored.update == 12
    assert torch.equal(restored.state["model"]["weight"], torch.full((8, 8), 12.0))
    assert restored.state["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.99)
    assert saved.bytes == sum(path.stat().st_size for path in saved.path.iterdir())


def test_empty_store_loads_nothing(tmp_path):
    assert Store(str(tmp_path / "checkpoints")).load() is None


def test_only_the_newest_are_kept(tmp_path):
    store = Store(tmp_path, keep=2)
    for update in (1, 2, 3, 10):
        store.save(update, state(update))
    assert store.updates() == [3, 10]


def test_retained_checkpoints_are_kept_by_later_stores_too(tmp_path):
    store = Store(tmp_path, keep=2)
    for update in (1, 2, 3, 4):
        store.save(update, state(update), retained=update in (1, 3))
    store = Store(tmp_path, keep=2)
    for update in (5, 6, 7):
        store.save(update, state(update))
    assert store.updates() == [1, 3, 6, 7]
    assert [read_manifest(store.path(update)).retained for update in store.updates()] == [True, True, False, False]
    flip(store.path(3) / "manifest.json", 20)
    store = Store(tmp_path, keep=2)  # nothing shows any more that it was to be kept
    store.save(8, state(8))
    assert store.updates() == [1, 7, 8]


def test_retained_checkpoints_make_space_on_a_full_disk(tmp_path):
    root = tmp_path / "run" / "checkpoints"
    probe = Store(root, keep=2)
    size = probe.save(0, state(0)).bytes
    store = Store(root, keep=2, limit_bytes=2**20 + 4 * size + 100)
    for update in (1, 2, 3, 4):
        saved = store.save(update, state(update), retained=True)
    assert store.updates() == [1, 2, 3, 4] and saved.freed == ()
    saved = store.save(5, state(5), retained=True)
    assert saved.freed == (store.path(1),) and store.updates() == [2, 3, 4, 5]
    assert Store(root).load().update == 5


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"])
def test_flipped_byte_is_reported_and_checkpoint_skipped(tmp_path, name):
    Store(tmp_path).save(1, state(1))
    Store(tmp_path).save(2, state(2))
    intact = tmp_path / "intact"
    shutil.copytree(tmp_path / "update-00000002", intact)
    size = (intact / name).stat().st_size
    for position in range(0, size, max(1, size // 40)):
        damaged = []
        flip(tmp_path / "update-00000002" / name, position)
        restored = Store(
            tmp_path, on_damaged=lambda path, file, reason, damaged=damaged: damaged.append((path.name, file))
        ).load()
        assert restored.update == 1
        # The manifest is named if it does not match its own digest, else the file.
        assert damaged == [("update-00000002", name)]
        shutil.copyfile(intact / name, tmp_path / "update-00000002" / name)
    assert Store(tmp_path).load().update == 2


def test_missing_and_truncated_files_are_detected(tmp_path):
    Store(tmp_path).save(1, state(1))
    path = Store(tmp_path).save(2, state(2)).path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert Store(tmp_path).load().update == 1
    path.unlink()
    assert Store(tmp_path).load().update == 1


def test_error_names_each_damaged_checkpoint(tmp_path):
    for update in (1, 2):
        flip(Store(tmp_path).save(update, state(update)).path / "model.safetensors", 100)
    with pytest.raises(CheckpointError) as caught:
        Store(tmp_path).load()
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "update-00000002/model.safetensors",
        "update-00000001/model.safetensors",
    ]


def test_damaged_checkpoint_is_replaced_by_next_save(tmp_path):
    for update in (1, 2, 3):
        Store(tmp_path, keep=5).save(update, state(update))
    flip(tmp_path / "update-00000003" / "state.json", 10)
    store = Store(tmp_path, keep=2)
    assert store.load().update == 2
    store.save(3, state(3))
    assert store.updates() == [2, 3]
    assert Store(tmp_path).load().update == 3


def test_unread_newer_checkpoints_are_not_removed(tmp_path):
    Store(tmp_path).save(8, state(8))
    Store(tmp_path).save(9, state(9))
    Store(tmp_path).save(4, state(4))
    assert Store(tmp_path).updates() == [4, 8, 9]


def test_saving_the_same_update_replaces_the_checkpoint(tmp_path):
    store = Store(tmp_path)
    store.save(5, state(5))
    store.save(5, state(50))
    assert Store(tmp_path).load().state["progress"]["update"] == 50


def test_interrupted_save_is_cleaned_up(tmp_path):
    path = Store(tmp_path).save(5, state(5)).path
    path.rename(tmp_path / ".replaced-00000005")
    (tmp_path / ".writing-00000006-123").mkdir()
    store = Store(tmp_path)
    assert store.load().update == 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["update-00000005"]


def test_old_checkpoint_is_restored_if_rename_fails(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save(5, state(5))
    rename = Path.rename

    def fail(path, target):
        if path.name.startswith(".writing"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        store.save(5, state(50))
    assert [entry.name for entry in tmp_path.iterdir()] == ["update-00000005"]
    assert Store(tmp_path).load().state["progress"]["update"] == 5


def test_full_disk_is_detected_before_writing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save(1, state(1))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    with pytest.raises(CheckpointError, match=r"needs 1\.00 MiB, but .* has 1000 B free"):
        store.save(2, state(2))
    monkeypatch.undo()
    assert store.updates() == [1]


def test_disk_limit_of_platform_applies(tmp_path):
    store = Store(tmp_path / "run" / "checkpoints", limit_bytes=2 * 2**20)
    store.save(1, state(1))
    (tmp_path / "run" / "cache").write_bytes(bytes(2**20))
    with pytest.raises(CheckpointError, match=r"limit of the run is 2\.00 MiB"):
        store.save(2, state(2))


def test_failed_write_leaves_existing_checkpoints(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save(1, state(1))

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shoestring.training.checkpoint.writing.write_text", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save(2, state(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["update-00000001"]
    assert Store(tmp_path).load().update == 1


def rewrite_manifest(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    (path / "manifest.json").write_text(json.dumps(add_digest({**manifest, **changes})))


@pytest.mark.parametrize("name", ["../secret.json", "secret.pkl", "more/model.safetensors"])
def test_manifest_with_other_paths_or_types_is_rejected(tmp_path, name):
    path = Store(tmp_path).save(1, state(1)).path
    other = path / name
    other.parent.mkdir(exist_ok=True)
    other.write_text("{}")
    manifest = json.loads((path / "manifest.json").read_text())
    entry = {"bytes": 2, "sha256": sha256(other)}
    rewrite_manifest(path, files={**manifest["files"], name: entry})
    with pytest.raises(CheckpointError, match="does not describe this checkpoint"):
        Store(tmp_path).load()


def test_newer_format_is_not_reported_as_damage(tmp_path):
    path = Store(tmp_path).save(1, state(1)).path
    rewrite_manifest(path, format=99)
    with pytest.raises(CheckpointError, match="format 99"):
        Store(tmp_path).load()


def test_checkpoint_under_wrong_name_is_rejected(tmp_path):
    path = Store(tmp_path).save(1, state(1)).path
    path.rename(tmp_path / "update-00000007")
    with pytest.raises(CheckpointError):
        Store(tmp_path).load()


def test_checkpoint_of_version_0_1_0_is_read(tmp_path):
    """Its manifest has format 1: only the update and the files."""
    path = Store(tmp_path).save(3, state(3)).path
    manifest = json.loads((path / "manifest.json").read_text())
    format_1 = add_digest({"format": 1, "update": 3, "files": manifest["files"]})
    (path / "manifest.json").write_text(json.dumps(format_1, indent=1))
    assert Store(tmp_path).load().state["progress"]["update"] == 3
    load_weights(path, model := torch.nn.Linear(8, 8, bias=False))
    assert torch.equal(model.weight, torch.full((8, 8), 3.0))
    flip(path / "model.safetensors", -1)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        load_weights(path, model)


def test_manifest_has_the_kind_of_checkpoint(tmp_path):
    path = Store(tmp_path).save(3, state(3)).path
    manifest = read_manifest(path)
    assert (manifest.kind, manifest.update) == ("full", 3)
    assert manifest.weights == {"trained": ("model.safetensors",)}
    rewrite_manifest(path, kind="weights")
    with pytest.raises(CheckpointError, match="does not describe this checkpoint"):
        Store(tmp_path).load()


def test_invalid_section_name_is_rejected(tmp_path):
    store = Store(tmp_path)
    store.save(1, state(1))
    with pytest.raises(CheckpointError, match=r"'net\.G\.safetensors'") as error:
        store.save(2, {**state(2), "net.G": {"weight": torch.ones(3)}})
    assert "letters, digits and underscores" in error.value.hint
    assert [entry.name for entry in tmp_path.iterdir()] == ["update-00000001"]


def test_sections_have_the_names_of_attributes(tmp_path):
    store = Store(tmp_path)
    store.save(1, {**state(1), "netG": {"weight": torch.ones(3)}, "D2": {"weight": torch.zeros(2)}})
    restored = Store(tmp_path).load().state
    assert torch.equal(restored["netG"]["weight"], torch.ones(3)) and len(restored["D2"]["weight"]) == 2


def test_weights_load_without_the_optimizer_file(tmp_path):
    path = Store(tmp_path).save(3, state(3)).path
    (path / "optimizer.safetensors").unlink()
    model = torch.nn.Linear(8, 8, bias=False)
    assert load_weights(path, model) == 3
    assert torch.equal(model.weight, torch.full((8, 8), 3.0))
    other = Store(tmp_path / "other").save(3, {"progress": {"update": 3}}).path
    with pytest.raises(CheckpointError, match=r"state\.json is damaged: it has no section 'model'"):
        load_weights(other, model)
