import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from shoestring.checkpoint.files import sha256
from shoestring.checkpoint.manifest import read_manifest, signed
from shoestring.checkpoint.store import Store
from shoestring.checkpoint.weights import load_weights
from shoestring.errors import CheckpointError


def state(value):
    return {
        "model": {"weight": torch.full((8, 8), float(value))},
        "optimizer": {"state": {0: {"step": torch.tensor(float(value))}}, "param_groups": [{"betas": (0.9, 0.99)}]},
        "progress": {"update": value, "history": []},
    }


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(bytes(data))


def test_the_newest_comes_back_as_it_was(tmp_path):
    store = Store(tmp_path / "checkpoints")
    store.save(3, state(3))
    saved = store.save(12, state(12))
    restored = Store(tmp_path / "checkpoints").load()
    assert restored.update == 12
    assert torch.equal(restored.state["model"]["weight"], torch.full((8, 8), 12.0))
    assert restored.state["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.99)
    assert saved.bytes == sum(path.stat().st_size for path in saved.path.iterdir())


def test_nothing_yet_is_no_error(tmp_path):
    assert Store(tmp_path / "checkpoints").load() is None


def test_only_the_newest_are_kept(tmp_path):
    store = Store(tmp_path, keep=2)
    for update in (1, 2, 3, 10):
        store.save(update, state(update))
    assert store.updates() == [3, 10]


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"])
def test_any_flipped_byte_is_found_named_and_passed_over(tmp_path, name):
    Store(tmp_path).save(1, state(1))
    Store(tmp_path).save(2, state(2))
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "update-00000002", whole)
    size = (whole / name).stat().st_size
    for place in range(0, size, max(1, size // 40)):
        found = []
        flip(tmp_path / "update-00000002" / name, place)
        restored = Store(
            tmp_path, on_damaged=lambda path, file, why, found=found: found.append((path.name, file))
        ).load()
        assert restored.update == 1
        # A manifest that no longer fits its own digest is what is named, else the file itself.
        assert found == [("update-00000002", name)]
        shutil.copyfile(whole / name, tmp_path / "update-00000002" / name)
    assert Store(tmp_path).load().update == 2


def test_a_missing_and_a_truncated_file_are_found(tmp_path):
    Store(tmp_path).save(1, state(1))
    path = Store(tmp_path).save(2, state(2)).path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert Store(tmp_path).load().update == 1
    path.unlink()
    assert Store(tmp_path).load().update == 1


def test_when_all_are_damaged_it_is_an_error_that_names_each(tmp_path):
    for update in (1, 2):
        flip(Store(tmp_path).save(update, state(update)).path / "model.safetensors", 100)
    with pytest.raises(CheckpointError) as caught:
        Store(tmp_path).load()
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "update-00000002/model.safetensors",
        "update-00000001/model.safetensors",
    ]


def test_after_falling_back_the_damaged_one_goes_when_a_whole_one_is_there(tmp_path):
    for update in (1, 2, 3):
        Store(tmp_path, keep=5).save(update, state(update))
    flip(tmp_path / "update-00000003" / "state.json", 10)
    store = Store(tmp_path, keep=2)
    assert store.load().update == 2
    store.save(3, state(3))
    assert store.updates() == [2, 3]
    assert Store(tmp_path).load().update == 3


def test_newer_checkpoints_are_not_removed_by_one_who_did_not_look(tmp_path):
    Store(tmp_path).save(8, state(8))
    Store(tmp_path).save(9, state(9))
    Store(tmp_path).save(4, state(4))
    assert Store(tmp_path).updates() == [4, 8, 9]


def test_a_checkpoint_of_the_same_update_replaces_the_one_before(tmp_path):
    store = Store(tmp_path)
    store.save(5, state(5))
    store.save(5, state(50))
    assert Store(tmp_path).load().state["progress"]["update"] == 50


def test_what_a_kill_leaves_in_the_midst_of_a_save_is_put_right(tmp_path):
    path = Store(tmp_path).save(5, state(5)).path
    path.rename(tmp_path / ".replaced-00000005")
    (tmp_path / ".writing-00000006-123").mkdir()
    store = Store(tmp_path)
    assert store.load().update == 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["update-00000005"]


def test_when_the_new_one_cannot_take_its_name_the_old_one_has_it_again(tmp_path, monkeypatch):
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


def test_a_full_disk_is_found_before_writing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save(1, state(1))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 1000))
    with pytest.raises(CheckpointError, match=r"needs 1\.00 MiB; .* has 1000 B free"):
        store.save(2, state(2))
    monkeypatch.undo()
    assert store.updates() == [1]


def test_the_platforms_limit_counts_where_the_system_says_more(tmp_path):
    store = Store(tmp_path / "run" / "checkpoints", limit_bytes=2 * 2**20)
    store.save(1, state(1))
    (tmp_path / "run" / "cache").write_bytes(bytes(2**20))
    with pytest.raises(CheckpointError, match=r"may take 2\.00 MiB"):
        store.save(2, state(2))


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save(1, state(1))

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shoestring.checkpoint.store.write_text", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save(2, state(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["update-00000001"]
    assert Store(tmp_path).load().update == 1


def rewrite_manifest(path, **changes):
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["sha256"]
    (path / "manifest.json").write_text(json.dumps(signed({**manifest, **changes})))


@pytest.mark.parametrize("name", ["../secret.json", "secret.pkl", "more/model.safetensors"])
def test_a_manifest_that_names_other_places_or_kinds_is_not_followed(tmp_path, name):
    path = Store(tmp_path).save(1, state(1)).path
    other = path / name
    other.parent.mkdir(exist_ok=True)
    other.write_text("{}")
    manifest = json.loads((path / "manifest.json").read_text())
    listed = {"bytes": 2, "sha256": sha256(other)}
    rewrite_manifest(path, files={**manifest["files"], name: listed})
    with pytest.raises(CheckpointError, match="does not describe this checkpoint"):
        Store(tmp_path).load()


def test_a_checkpoint_of_a_newer_format_is_not_called_damaged(tmp_path):
    path = Store(tmp_path).save(1, state(1)).path
    rewrite_manifest(path, format=99)
    with pytest.raises(CheckpointError, match="format 99"):
        Store(tmp_path).load()


def test_a_checkpoint_under_another_updates_name_is_refused(tmp_path):
    path = Store(tmp_path).save(1, state(1)).path
    path.rename(tmp_path / "update-00000007")
    with pytest.raises(CheckpointError):
        Store(tmp_path).load()


def test_a_checkpoint_of_version_0_1_0_is_read(tmp_path):
    """Its manifest was of format 1: the update, and the files."""
    path = Store(tmp_path).save(3, state(3)).path
    manifest = json.loads((path / "manifest.json").read_text())
    first = signed({"format": 1, "update": 3, "files": manifest["files"]})
    (path / "manifest.json").write_text(json.dumps(first, indent=1))
    assert Store(tmp_path).load().state["progress"]["update"] == 3
    load_weights(path, model := torch.nn.Linear(8, 8, bias=False))
    assert torch.equal(model.weight, torch.full((8, 8), 3.0))
    flip(path / "model.safetensors", -1)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        load_weights(path, model)


def test_the_manifest_says_what_kind_of_files_these_are(tmp_path):
    path = Store(tmp_path).save(3, state(3)).path
    manifest = read_manifest(path)
    assert (manifest.kind, manifest.update) == ("full", 3)
    assert manifest.weights == {"trained": ("model.safetensors",)}
    rewrite_manifest(path, kind="weights")
    with pytest.raises(CheckpointError, match="does not describe this checkpoint"):
        Store(tmp_path).load()


def test_a_state_that_could_not_be_read_back_is_not_saved(tmp_path):
    store = Store(tmp_path)
    store.save(1, state(1))
    with pytest.raises(CheckpointError, match=r"'Ema2\.safetensors'") as error:
        store.save(2, {**state(2), "Ema2": {"weight": torch.ones(3)}})
    assert "small letters" in error.value.hint
    assert [entry.name for entry in tmp_path.iterdir()] == ["update-00000001"]


def test_weights_are_loaded_whatever_became_of_the_rest(tmp_path):
    path = Store(tmp_path).save(3, state(3)).path
    (path / "optimizer.safetensors").unlink()
    model = torch.nn.Linear(8, 8, bias=False)
    assert load_weights(path, model) == 3
    assert torch.equal(model.weight, torch.full((8, 8), 3.0))
    other = Store(tmp_path / "other").save(3, {"progress": {"update": 3}}).path
    with pytest.raises(CheckpointError, match=r"state\.json is damaged: it says nothing of a model"):
        load_weights(other, model)
