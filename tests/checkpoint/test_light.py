import errno
import json
import os
import shutil

import peft
import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file
from torch import nn

from shoestring.checkpoint.files import sha256
from shoestring.checkpoint.fileset import staged
from shoestring.checkpoint.light import (
    ADAPTER,
    WEIGHTS,
    has_weights,
    keep_newest,
    load_light,
    of_update,
    of_updates,
    read_light,
    save_light,
)
from shoestring.checkpoint.manifest import MANIFEST, read_manifest
from shoestring.checkpoint.store import Store
from shoestring.errors import CheckpointError
from tests.checkpoint.faults import KINDS, Disk, Killed, failing, killing


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_weights_come_back_tied_ones_too(tmp_path):
    saved, loaded = Tied(), Tied()
    save_light(tmp_path / "best", saved, {"update": 7, "metrics": {"loss": 0.5}})
    assert load_light(tmp_path / "best", loaded) == {"update": 7, "metrics": {"loss": 0.5}}
    assert torch.equal(loaded.head.weight, saved.embed.weight)
    assert (tmp_path / "best" / WEIGHTS).stat().st_size < 5 * 3 * 4 + 400


def test_the_file_is_replaced_at_once(tmp_path):
    for _ in range(2):
        save_light(tmp_path, nn.Linear(2, 2), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", WEIGHTS]


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"", lambda data: b"\xff" * 8 + data[8:]])
def test_damaged_weights_are_one_error(tmp_path, damage):
    path = save_light(tmp_path, nn.Linear(2, 2), {})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_light(tmp_path, nn.Linear(2, 2))


def test_another_models_weights_are_one_error(tmp_path):
    save_light(tmp_path, nn.Linear(2, 2), {})
    with pytest.raises(CheckpointError):
        load_light(tmp_path, nn.Linear(3, 2))
    with pytest.raises(CheckpointError):
        load_light(tmp_path / "nothing", nn.Linear(3, 2))


def test_what_does_not_fit_changes_nothing(tmp_path):
    class Two(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, width)

    save_light(tmp_path, Two(3), {})
    model = Two(4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"b\.weight was saved as \(3, 2\)"):
        load_light(tmp_path, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Normed(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.linear, self.huge, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.BatchNorm1d(64)
        with torch.no_grad():
            self.huge.weight *= scale
            self.norm.running_var *= 1e-9


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_rounded_parameters_take_half_the_bytes_and_buffers_stay(tmp_path, name, dtype):
    model, other = Normed(), Normed()
    own = save_light(tmp_path / "own", model, {}).stat().st_size
    path = save_light(tmp_path / "rounded", model, {"update": 3}, rounded=name)
    assert path.stat().st_size < 0.52 * own
    saved = safetensors.torch.load_file(path)
    assert saved["linear.weight"].dtype == dtype
    assert saved["norm.running_var"].dtype == torch.float32
    assert saved["norm.num_batches_tracked"].dtype == torch.int64
    assert load_light(tmp_path / "rounded", other) == {"update": 3}
    assert other.linear.weight.dtype == torch.float32
    assert torch.equal(other.linear.weight, model.linear.weight.to(dtype).float())
    assert torch.equal(other.norm.running_var, model.norm.running_var)


def test_what_fp16_cannot_hold_stays_as_it_is(tmp_path):
    model, other = Normed(scale=1e7), Normed()
    saved = safetensors.torch.load_file(save_light(tmp_path, model, {}, rounded="fp16"))
    assert (saved["linear.weight"].dtype, saved["huge.weight"].dtype) == (torch.float16, torch.float32)
    load_light(tmp_path, other)
    assert torch.equal(other.huge.weight, model.huge.weight)


def test_facts_that_are_no_object_are_refused(tmp_path):
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / WEIGHTS, metadata={"shoestring": "[1]"})
    with pytest.raises(CheckpointError, match="not an object"):
        load_light(tmp_path, nn.Linear(2, 2))


class Words(nn.Module):
    """A wrapper around a model that peft adapts, as recipes have them."""

    def __init__(self, seed=0, head=False):
        super().__init__()
        torch.manual_seed(seed)
        base = nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.Linear(64, 50))
        self.adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["1"]))
        self.head = nn.Linear(50, 2) if head else None


def test_adapters_are_written_as_peft_writes_them(tmp_path):
    saved = Words()
    with torch.no_grad():
        for parameter in saved.parameters():
            if parameter.requires_grad:
                parameter += 0.1
    path = save_light(tmp_path / "best", saved, {"update": 3})
    names = ["adapter_config.json", "adapter_model.safetensors", "manifest.json"]
    assert sorted(file.name for file in path.parent.iterdir()) == names
    saved.adapted.save_pretrained(tmp_path / "peft")
    theirs = safetensors.torch.load_file(tmp_path / "peft" / "adapter_model.safetensors")
    ours = safetensors.torch.load_file(path)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert json.loads((path.parent / "adapter_config.json").read_text()) == json.loads(
        (tmp_path / "peft" / "adapter_config.json").read_text()
    )
    full = Store(tmp_path / "full").save(1, {"model": saved.state_dict()})
    assert 4 * sum(file.stat().st_size for file in path.parent.iterdir()) <= full.bytes

    other = Words()
    assert load_light(tmp_path / "best", other) == {"update": 3}
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in other.state_dict().items())
    base = Words().adapted.unload()
    again = peft.PeftModel.from_pretrained(base, str(tmp_path / "best"))
    tokens = torch.arange(5)
    assert torch.equal(again(tokens), saved.adapted(tokens))


def test_rounded_adapters_are_loaded_by_peft(tmp_path):
    saved = Words()
    path = save_light(tmp_path, saved, {}, rounded="fp16")
    assert {weight.dtype for weight in safetensors.torch.load_file(path).values()} == {torch.float16}
    load_light(tmp_path, other := Words(seed=1))
    again = peft.PeftModel.from_pretrained(Words().adapted.unload(), str(tmp_path))
    for model in (other.adapted, again):
        adapters = [value for name, value in model.named_parameters() if "lora_A" in name]
        original = [value for name, value in saved.adapted.named_parameters() if "lora_A" in name]
        assert all(torch.equal(one, two.half().float()) for one, two in zip(adapters, original, strict=True))


def test_what_is_trained_besides_adapters_is_saved_with_them(tmp_path):
    assert save_light(tmp_path, Words(head=True), {}).name == WEIGHTS


def test_a_metric_that_is_no_number_keeps_nothing_from_loading(tmp_path):
    save_light(tmp_path, nn.Linear(2, 2), {"metrics": {"loss": 1.0, "auc": float("nan")}})
    assert str(load_light(tmp_path, nn.Linear(2, 2))["metrics"]["auc"]) == "nan"


def filled(value):
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, value)
    nn.init.constant_(model.bias, value)
    return model


def adapting(value):
    """A model whose adapters, and what peft's config says of them, tell which of two it is."""
    base = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, lora_alpha=10 * value, target_modules=["1"]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.constant_(parameter, value)
    return adapted


def value_of(model):
    (value,) = {
        float(parameter.detach().min()) for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    return value


MODELS = {"whole": filled, "adapters": adapting}


@pytest.mark.parametrize("strike", [killing, lambda number: failing(number, errno.ENOSPC)], ids=["kill", "full disk"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_wherever_a_save_ends_the_weights_before_or_the_new_ones_are_loaded_whole(tmp_path, monkeypatch, make, strike):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    before, after, model = make(1), make(2), make(7)
    save_light(tmp_path / "before", before, {"update": 1})
    shutil.copytree(tmp_path / "before", tmp_path / "best")
    disk = Disk(tmp_path / "best")
    with disk.watching():
        save_light(tmp_path / "best", after, {"update": 2})
    committed = disk.done.index("replace .manifest.json.next")
    for number in range(len(disk.done)):
        shutil.rmtree(tmp_path / "best")
        shutil.copytree(tmp_path / "before", tmp_path / "best")
        with Disk(tmp_path / "best", strike(number)).watching():
            try:
                save_light(tmp_path / "best", after, {"update": 2})
                raised = False
            except (CheckpointError, Killed):
                raised = True
        loaded = read_light(tmp_path / "best", model)
        expected = 1 if raised and number <= committed else 2
        assert (loaded.facts, value_of(model), loaded.verified) == ({"update": expected}, expected, True)
        assert read_manifest(tmp_path / "best").update == expected
        save_light(tmp_path / "best", make(3), {"update": 3})
        assert load_light(tmp_path / "best", model) == {"update": 3}
        assert {path.name for path in (tmp_path / "best").iterdir()} == {
            MANIFEST,
            *read_manifest(tmp_path / "best").files,
        }
        if make is adapting:
            config = json.loads((tmp_path / "best" / "adapter_config.json").read_text())
            assert (config["lora_alpha"], value_of(model)) == (30, 3)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_flipped_bit_anywhere_in_any_file_is_found_and_the_model_stays_as_it_was(tmp_path, make):
    folder = save_light(tmp_path / "best", make(1), {"update": 1}).parent
    model = make(7)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << at % 8
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match=f"best/{path.name} cannot be loaded") as error:
                load_light(folder, model)
            assert error.value.hint
            assert value_of(model) == 7
        path.write_bytes(whole)
    assert load_light(folder, model) == {"update": 1}


def test_weights_without_a_manifest_are_loaded_and_said_to_be_unverified(tmp_path):
    save_light(tmp_path, filled(1), {"update": 1})
    assert read_light(tmp_path, filled(7)).verified
    (tmp_path / MANIFEST).unlink()
    loaded = read_light(tmp_path, model := filled(7))
    assert (loaded.facts, loaded.verified, value_of(model)) == ({"update": 1}, False, 1)
    save_light(tmp_path, filled(2), {"update": 2})
    assert read_light(tmp_path, model).verified


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_manifest_that_is_none_is_not_taken_for_a_folder_without_one(tmp_path, make):
    save_light(tmp_path, filled(1), {"update": 1})
    (tmp_path / MANIFEST).unlink()
    make(tmp_path / MANIFEST)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_light(tmp_path, filled(7))


@pytest.mark.parametrize("error", KINDS.values(), ids=KINDS)
def test_a_disk_that_cannot_be_read_makes_no_weights_unverified(tmp_path, error):
    save_light(tmp_path, filled(1), {"update": 1})
    disk = Disk(tmp_path)
    with disk.watching():
        read_light(tmp_path, filled(7))
    refused = 0
    for number in range(len(disk.done)):
        model = filled(7)
        with Disk(tmp_path, failing(number, error)).watching():
            try:
                assert read_light(tmp_path, model).verified
            except CheckpointError:
                refused += 1
                assert value_of(model) == 7
            else:
                assert value_of(model) == 1
    assert refused


def test_the_weights_of_a_full_checkpoint_are_held_against_its_manifest(tmp_path):
    folder = Store(tmp_path).save(3, {"model": filled(1).state_dict()}).path
    model = filled(7)
    assert (read_light(folder, model).verified, value_of(model)) == (True, 1)
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    with pytest.raises(CheckpointError, match="not those that were written"):
        load_light(folder, model)


def test_a_file_put_in_the_place_of_one_that_a_manifest_speaks_of_is_refused(tmp_path):
    save_light(tmp_path, filled(1), {})
    save_file(filled(5).state_dict(), tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match="cannot be loaded") as error:
        load_light(tmp_path, filled(7))
    assert "files of your own" in error.value.hint


def test_links_and_pipes_are_refused_with_a_manifest_and_without(tmp_path):
    folder = save_light(tmp_path / "best", filled(1), {}).parent
    (folder / WEIGHTS).rename(tmp_path / "elsewhere")
    for make in (lambda path: path.symlink_to(tmp_path / "elsewhere"), os.mkfifo):
        save_light(folder, filled(1), {})
        (folder / WEIGHTS).unlink()
        make(folder / WEIGHTS)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="not a regular file"):
                load_light(folder, filled(7))
            (folder / MANIFEST).unlink(missing_ok=True)
        (folder / WEIGHTS).unlink()


def test_adapters_in_the_place_of_a_whole_model_are_one_error(tmp_path):
    save_light(tmp_path, adapting(1), {})
    with pytest.raises(CheckpointError, match=f"the weights are adapter_config.json, {ADAPTER}, not {WEIGHTS}"):
        load_light(tmp_path, filled(7))


@pytest.mark.parametrize(
    ("facts", "update"), [({"update": 3}, 3), ({}, None), ({"update": "3"}, None), ({"update": True}, None)]
)
def test_the_manifest_knows_the_update_where_the_facts_do(tmp_path, facts, update):
    save_light(tmp_path, filled(1), facts)
    assert read_manifest(tmp_path).update == update
    assert load_light(tmp_path, filled(7)) == facts


def test_the_manifest_speaks_of_the_files_as_they_are(tmp_path):
    save_light(tmp_path, adapting(1), {})
    manifest = read_manifest(tmp_path)
    assert manifest.weights == {"trained": ("adapter_config.json", ADAPTER)}
    assert {name: (entry.bytes, entry.sha256) for name, entry in manifest.files.items()} == {
        name: ((tmp_path / name).stat().st_size, sha256(tmp_path / name)) for name in ("adapter_config.json", ADAPTER)
    }


def test_no_byte_is_hashed_for_the_manifest_alone(tmp_path, monkeypatch):
    read = []
    before = os.read
    monkeypatch.setattr(os, "read", lambda *arguments: read.append(before(*arguments)) or read[-1])
    path = save_light(tmp_path, filled(1), {})
    # As it was before there was a manifest: what was written is read back once. The manifest is, too.
    assert sum(map(len, read)) == path.stat().st_size + (tmp_path / MANIFEST).stat().st_size


def test_weights_of_updates_count_from_the_instant_that_they_are_whole(tmp_path):
    for update in (1, 2, 3):
        save_light(of_update(tmp_path, update), filled(update), {})
    whole, unnamed, writing = (of_update(tmp_path, update) for update in (1, 2, 3))
    (unnamed / WEIGHTS).rename(staged(unnamed, WEIGHTS))
    (writing / WEIGHTS).rename(staged(writing, WEIGHTS))
    (writing / MANIFEST).unlink()
    (tmp_path / "update-7").mkdir()
    assert of_updates(tmp_path) == [whole, unnamed]
    assert [has_weights(folder) for folder in (whole, unnamed, writing, tmp_path)] == [True, True, False, False]
    load_light(unnamed, model := filled(7))
    assert value_of(model) == 2
    keep_newest(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [unnamed.name, "update-7"]
