"""What is wrong with the weights of a folder is said by name, before training starts."""

import json

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
