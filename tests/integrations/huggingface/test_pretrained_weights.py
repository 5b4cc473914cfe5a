"""What is wrong with the weights of a folder is said by name, before training starts."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import pretrained
from shoestring.integrations.huggingface.library_errors import without_advice
from tests.recipes.finetune.tiny_models import llama


@pytest.fixture
def folder(tmp_path):
    llama().save_pretrained(tmp_path)
    return tmp_path


def load(folder):
    with pretrained.reading("model=x"):
        return pretrained.load_model(LlamaForCausalLM, folder)


def find_and_load(folder):
    with pretrained.reading("model=x"):
        weights_folder = pretrained.find_weights(folder, download=False)
    return load(weights_folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weight_that_is_not_finite(folder, value):
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.mlp.up_proj.weight"][3, 2] = value
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(UsageError, match=r"model.layers.1.mlp.up_proj.weight has values that are not finite"):
        load(folder)


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_weights_of_other_sizes(folder):
    change(folder, hidden_size=32, head_dim=8)
    with pytest.raises(UsageError, match=r"lm_head.weight is \[40, 16\], and of the described model \[40, 32\]"):
        load(folder)


def test_weights_that_the_configuration_does_not_have(folder, capsys):
    change(folder, num_hidden_layers=1)
    assert load(folder)[1] == []
    assert "note: 9 of the weights in" in (messages := capsys.readouterr().err) and "model.layers.1." in messages


@pytest.fixture
def shards(tmp_path):
    llama().save_pretrained(tmp_path, max_shard_size="8KB")
    return sorted(tmp_path.glob("*.safetensors"))


DAMAGES = {
    "truncated": (lambda shard: shard.write_bytes(shard.read_bytes()[:-1]), "{name} cannot be loaded: .*"),
    "longer": (lambda shard: shard.write_bytes(shard.read_bytes() + b"0"), "{name} cannot be loaded: .*"),
    "empty": (lambda shard: shard.write_bytes(b""), "{name} cannot be loaded: .*"),
    "missing": (lambda shard: shard.unlink(), "there is no file {name}"),
    "not finite": (
        lambda shard: save_file({name: value * math.nan for name, value in load_file(shard).items()}, shard),
        "has values that are not finite",
    ),
    "other sizes": (
        lambda shard: save_file({name: value[:-1] for name, value in load_file(shard).items()}, shard),
        "of the weights have other sizes than config.json says",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_named(shards, damage):
    damage_shard, message = DAMAGES[damage]
    damage_shard(shards[3])
    with pytest.raises(UsageError, match=message.format(name=shards[3].name)):
        find_and_load(shards[0].parent)


def test_shards_are_mapped_and_not_read(shards):
    """Their pages are memory that the operating system can take back."""
    model, _ = load(shards[0].parent)
    mapped = [
        tuple(int(address, 16) for address in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(shards[0].parent) in line
    ]
    assert all(any(start <= weight.data_ptr() < end for start, end in mapped) for weight in model.parameters())


def test_sound_weights_are_loaded(folder, capsys):
    model, missing = load(folder)
    assert torch.equal(model.lm_head.weight, llama().lm_head.weight) and not missing
    assert "note" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "possible"),
    [
        ("The repository x contains custom code. Please pass the argument `trust_remote_code=True` to allow it.",
         "it needs code that is distributed with it, which is never run"),
        ("Sizes differ.\nYou may consider adding `ignore_mismatched_sizes=True` to the method.", "Sizes differ."),
        ("No such file. If this is private, pass a token by passing `token=<your_token>`.", "No such file."),
        ("Cannot load it. Set `force_download=True` to replace it.", "Cannot load it."),
        ("Unknown token=3 in line 7", "Unknown token=3 in line 7"),
    ],
)  # fmt: skip
def test_advice_that_cannot_be_followed_is_left_out(message, possible):
    assert without_advice(message) == possible
