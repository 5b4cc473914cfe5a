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

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.files import sha256
from shoestring.training.checkpoint.fileset import staged_path
from shoestring.training.checkpoint.light import (
    ADAPTER,
    WEIGHTS,
    has_weights,
    keep_newest,
    list_weights_folders,
    load_light,
    read_light,
    save_light,
    weights_folder,
)
from shoestring.training.checkpoint.manifest import MANIFEST, read_manifest
from shoestring.training.checkpoint.store import Store
from tests.training.checkpoint.faults import KINDS, Disk, Killed, failing, killing


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_weights_round_trip_including_tied_ones(tmp_path):
    saved, loaded = Tied(), Tied()
    save_light(tmp_path / "best", saved, {"update": 7, "metrics": {"loss": 0.5}})
    assert load_light(tmp_path / "best", loaded) == {"update": 7, "metrics": {"loss": 0.5}}
    assert torch.equal(loaded.head.weight, saved.embed.weight)
    assert (tmp_path / "best" / WEIGHTS).stat().st_size < 5 * 3 * 4 + 400


def test_saving_again_leaves_no_other_files(tmp_path):
    for _ in range(2):
        save_light(tmp_path, nn.Linear(2, 2), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", WEIGHTS]


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"", lambda data: b"\xff" * 8 + data[8:]])
def test_damaged_weights_are_rejected(tmp_path, damage):
    path = save_light(tmp_path, nn.Linear(2, 2), {})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load_light(tmp_path, nn.Linear(2, 2))


def test_weights_of_another_model_are_rejected(tmp_path):
    save_light(tmp_path, nn.Linear(2, 2), {})
    with pytest.raises(CheckpointError):
        load_light(tmp_path, nn.Linear(3, 2))
    with pytest.raises(CheckpointError):
        load_light(tmp_path / "missing", nn.Linear(3, 2))


def test_rejected_weights_do_not_change_the_model(tmp_path):
    class TwoLayers(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, width)

    save_light(tmp_path, TwoLayers(3), {})
    model = TwoLayers(4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"b\.weight was saved as \(3, 2\)"):
        load_light(tmp_path, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class WithBatchNorm(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.linear, self.huge, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.BatchNorm1d(64)
        with torch.no_grad():
            self.huge.weight *= scale
            self.norm.running_var *= 1e-9


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_rounding_halves_parameters_and_keeps_buffers(tmp_path, name, dtype):
    model, other = WithBatchNorm(), WithBatchNorm()
    own_bytes = save_light(tmp_path / "own", model, {}).stat().st_size
    path = save_light(tmp_path / "rounded", model, {"update": 3}, rounded=name)
    assert path.stat().st_size < 0.52 * own_bytes
    saved = safetensors.torch.load_file(path)
    assert saved["linear.weight"].dtype == dtype
    assert saved["norm.running_var"].dtype == torch.float32
    assert saved["norm.num_batches_tracked"].dtype == torch.int64
    assert load_light(tmp_path / "rounded", other) == {"update": 3}
    assert other.linear.weight.dtype == torch.float32
    assert torch.equal(other.linear.weight, model.linear.weight.to(dtype).float())
    assert torch.equal(other.norm.running_var, model.norm.running_var)


def test_values_beyond_fp16_range_are_not_rounded(tmp_path):
    model, other = WithBatchNorm(scale=1e7), WithBatchNorm()
    saved = safetensors.torch.load_file(save_light(tmp_path, model, {}, rounded="fp16"))
    assert (saved["linear.weight"].dtype, saved["huge.weight"].dtype) == (torch.float16, torch.float32)
    load_light(tmp_path, other)
    assert torch.equal(other.huge.weight, model.huge.weight)


def test_facts_that_are_not_an_object_are_rejected(tmp_path):
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / WEIGHTS, metadata={"shoestring": "[1]"})
    with pytest.raises(CheckpointError, match="not an object"):
        load_light(tmp_path, nn.Linear(2, 2))


class LanguageModel(nn.Module):
    """A wrapper around a PeftModel, as in recipes."""

    def __init__(self, seed=0, head=False):
        super().__init__()
        self.adapted = peft.get_peft_model(self.make_base(seed), peft.LoraConfig(r=2, target_modules=["1"]))
        self.head = nn.Linear(50, 2) if head else None

    @staticmethod
    def make_base(seed=0):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 64), nn.Linear(64, 50))


def test_adapters_are_saved_as_by_peft(tmp_path):
    saved = LanguageModel()
    with torch.no_grad():
        for parameter in saved.parameters():
            if parameter.requires_grad:
                parameter += 0.1
    path = save_light(tmp_path / "best", saved, {"update": 3})
    names = ["adapter_config.json", "adapter_model.safetensors", "manifest.json"]
    assert sorted(file.name for file in path.parent.iterdir()) == names
    saved.adapted.save_pretrained(tmp_path / "peft")
    peft_weights = safetensors.torch.load_file(tmp_path / "peft" / "adapter_model.safetensors")
    own_weights = safetensors.torch.load_file(path)
    assert own_weights.keys() == peft_weights.keys()
    assert all(torch.equal(own_weights[name], peft_weights[name]) for name in own_weights)
    assert json.loads((path.parent / "adapter_config.json").read_text()) == json.loads(
        (tmp_path / "peft" / "adapter_config.json").read_text()
    )
    full = Store(tmp_path / "full").save(1, {"model": saved.state_dict()})
    assert 4 * sum(file.stat().st_size for file in path.parent.iterdir()) <= full.bytes

    other = LanguageModel()
    # Of several processes, as far as peft can see.
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert load_light(tmp_path / "best", other) == {"update": 3}
    finally:
        torch.distributed.destroy_process_group()
    assert all(torch.equal(value, saved.state_dict()[name]) for name, value in other.state_dict().items())
    reloaded = peft.PeftModel.from_pretrained(LanguageModel.make_base(), str(tmp_path / "best"))
    tokens = torch.arange(5)
    assert torch.equal(reloaded(tokens), saved.adapted(tokens))


def test_rounded_adapters_are_loaded_by_peft(tmp_path):
    saved = LanguageModel()
    path = save_light(tmp_path, saved, {}, rounded="fp16")
    assert {weight.dtype for weight in safetensors.torch.load_file(path).values()} == {torch.float16}
    load_light(tmp_path, other := LanguageModel(seed=1))
    reloaded = peft.PeftModel.from_pretrained(LanguageModel.make_base(), str(tmp_path))
    for model in (other.adapted, reloaded):
        adapters = [value for name, value in model.named_parameters() if "lora_A" in name]
        original = [value for name, value in saved.adapted.named_parameters() if "lora_A" in name]
        assert all(torch.equal(loaded, full.half().float()) for loaded, full in zip(adapters, original, strict=True))


def test_model_with_other_trained_weights_is_saved_whole(tmp_path):
    assert save_light(tmp_path, LanguageModel(head=True), {}).name == WEIGHTS


def test_nan_metric_does_not_prevent_loading(tmp_path):
    save_light(tmp_path, nn.Linear(2, 2), {"metrics": {"loss": 1.0, "auc": float("nan")}})
    assert str(load_light(tmp_path, nn.Linear(2, 2))["metrics"]["auc"]) == "nan"


def constant_linear(value):
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, value)
    nn.init.constant_(model.bias, value)
    return model


def constant_adapter(value):
    """Return a model with `value` in its adapters and in peft's configuration."""
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


MODELS = {"full model": constant_linear, "adapters": constant_adapter}


@pytest.mark.parametrize("strike", [killing, lambda number: failing(number, errno.ENOSPC)], ids=["kill", "full disk"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_interrupted_save_leaves_old_or_new_weights(tmp_path, monkeypatch, make, strike):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    before, after, model = make(1), make(2), make(7)
    save_light(tmp_path / "before", before, {"update": 1})
    shutil.copytree(tmp_path / "before", tmp_path / "best")
    disk = Disk(tmp_path / "best")
    with disk.watching():
        save_light(tmp_path / "best", after, {"update": 2})
    committed = disk.operations.index("replace .manifest.json.next")
    for number in range(len(disk.operations)):
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
        if make is constant_adapter:
            config = json.loads((tmp_path / "best" / "adapter_config.json").read_text())
            assert (config["lora_alpha"], value_of(model)) == (30, 3)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_flipped_bit_in_any_file_is_detected(tmp_path, make):
    folder = save_light(tmp_path / "best", make(1), {"update": 1}).parent
    model = make(7)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for position in range(0, len(content), max(1, len(content) // 40)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << position % 8
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match=f"best/{path.name} cannot be loaded") as error:
                load_light(folder, model)
            assert error.value.hint
            assert value_of(model) == 7
        path.write_bytes(content)
    assert load_light(folder, model) == {"update": 1}


def test_weights_without_manifest_load_as_unverified(tmp_path):
    save_light(tmp_path, constant_linear(1), {"update": 1})
    assert read_light(tmp_path, constant_linear(7)).verified
    (tmp_path / MANIFEST).unlink()
    loaded = read_light(tmp_path, model := constant_linear(7))
    assert (loaded.facts, loaded.verified, value_of(model)) == ({"update": 1}, False, 1)
    save_light(tmp_path, constant_linear(2), {"update": 2})
    assert read_light(tmp_path, model).verified


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("nowhere")])
def test_manifest_that_is_not_a_file_is_rejected(tmp_path, make):
    save_light(tmp_path, constant_linear(1), {"update": 1})
    (tmp_path / MANIFEST).unlink()
    make(tmp_path / MANIFEST)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_light(tmp_path, constant_linear(7))


@pytest.mark.parametrize("error", KINDS.values(), ids=KINDS)
def test_read_error_does_not_skip_verification(tmp_path, error):
    save_light(tmp_path, constant_linear(1), {"update": 1})
    disk = Disk(tmp_path)
    with disk.watching():
        read_light(tmp_path, constant_linear(7))
    rejected = 0
    for number in range(len(disk.operations)):
        model = constant_linear(7)
        with Disk(tmp_path, failing(number, error)).watching():
            try:
                assert read_light(tmp_path, model).verified
            except CheckpointError:
                rejected += 1
                assert value_of(model) == 7
            else:
                assert value_of(model) == 1
    assert rejected


def test_weights_of_full_checkpoint_are_verified(tmp_path):
    folder = Store(tmp_path).save(3, {"model": constant_linear(1).state_dict()}).path
    model = constant_linear(7)
    assert (read_light(folder, model).verified, value_of(model)) == (True, 1)
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    with pytest.raises(CheckpointError, match="digest does not match"):
        load_light(folder, model)


def test_replaced_weights_file_is_rejected_with_hint(tmp_path):
    save_light(tmp_path, constant_linear(1), {})
    save_file(constant_linear(5).state_dict(), tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match="cannot be loaded") as error:
        load_light(tmp_path, constant_linear(7))
    assert "weights of your own" in error.value.hint


def test_links_and_pipes_are_rejected(tmp_path):
    folder = save_light(tmp_path / "best", constant_linear(1), {}).parent
    (folder / WEIGHTS).rename(tmp_path / "target")
    for make in (lambda path: path.symlink_to(tmp_path / "target"), os.mkfifo):
        save_light(folder, constant_linear(1), {})
        (folder / WEIGHTS).unlink()
        make(folder / WEIGHTS)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="not a regular file"):
                load_light(folder, constant_linear(7))
            (folder / MANIFEST).unlink(missing_ok=True)
        (folder / WEIGHTS).unlink()


def test_adapters_for_a_full_model_are_rejected(tmp_path):
    save_light(tmp_path, constant_adapter(1), {})
    with pytest.raises(CheckpointError, match=f"it lists adapter_config.json, {ADAPTER} as the weights, not {WEIGHTS}"):
        load_light(tmp_path, constant_linear(7))


@pytest.mark.parametrize(
    ("facts", "update"), [({"update": 3}, 3), ({}, None), ({"update": "3"}, None), ({"update": True}, None)]
)
def test_manifest_takes_the_update_from_the_facts(tmp_path, facts, update):
    save_light(tmp_path, constant_linear(1), facts)
    assert read_manifest(tmp_path).update == update
    assert load_light(tmp_path, constant_linear(7)) == facts


def test_manifest_matches_the_files(tmp_path):
    save_light(tmp_path, constant_adapter(1), {})
    manifest = read_manifest(tmp_path)
    assert manifest.weights == {"trained": ("adapter_config.json", ADAPTER)}
    assert {name: (entry.bytes, entry.sha256) for name, entry in manifest.files.items()} == {
        name: ((tmp_path / name).stat().st_size, sha256(tmp_path / name)) for name in ("adapter_config.json", ADAPTER)
    }


def test_each_byte_is_read_back_only_once(tmp_path, monkeypatch):
    blocks = []
    original_read = os.read
    monkeypatch.setattr(os, "read", lambda *arguments: blocks.append(original_read(*arguments)) or blocks[-1])
    path = save_light(tmp_path, constant_linear(1), {})
    # The weights and the manifest are each read back once after writing.
    assert sum(map(len, blocks)) == path.stat().st_size + (tmp_path / MANIFEST).stat().st_size


def test_weights_of_an_update_count_once_committed(tmp_path):
    for update in (1, 2, 3):
        save_light(weights_folder(tmp_path, update), constant_linear(update), {})
    complete, unnamed, writing = (weights_folder(tmp_path, update) for update in (1, 2, 3))
    (unnamed / WEIGHTS).rename(staged_path(unnamed, WEIGHTS))
    (writing / WEIGHTS).rename(staged_path(writing, WEIGHTS))
    (writing / MANIFEST).unlink()
    (tmp_path / "update-7").mkdir()
    assert list_weights_folders(tmp_path) == [complete, unnamed]
    assert [has_weights(folder) for folder in (complete, unnamed, writing, tmp_path)] == [True, True, False, False]
    load_light(unnamed, model := constant_linear(7))
    assert value_of(model) == 2
    keep_newest(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [unnamed.name, "update-7"]
