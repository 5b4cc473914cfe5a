import json

import peft
import pytest
import safetensors.torch
import torch
from safetensors.torch import save_file
from torch import nn

from shoestring.checkpoint.light import WEIGHTS, load_light, save_light
from shoestring.checkpoint.store import Store
from shoestring.errors import CheckpointError


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
