"""Weights that are merged when they are written are those of a model that was merged before."""

import copy
import gc
import weakref

import pytest
import torch
from safetensors.torch import load_file

from shoestring.base.settings import Settings
from shoestring.techniques import nf4
from shoestring.techniques.streaming import placement
from shoestring_recipes.finetune import merging
from shoestring_recipes.finetune.merged_files import UnwrittenWeights
from tests.recipes.finetune.exported_models import random_model, with_lora
from tests.recipes.finetune.test_merging import packed_model
from tests.slow import slow_except


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def weights(folder):
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}


def save_merged_later(model, folder):
    unwritten = UnwrittenWeights()
    unwritten.save(merging.merge(model, unwritten.add), folder)


MODELS = {
    "lora": lambda: with_lora(random_model("llama")),
    "dora": lambda: with_lora(random_model("llama"), use_dora=True),
    "4 bits": lambda: with_lora(packed_model()),
    "bf16": lambda: with_lora(random_model("llama").bfloat16()),
    "tied": lambda: with_lora(random_model("qwen2", tie_word_embeddings=True), targets=["q_proj"]),
    "tied, with an adapter": lambda: with_lora(random_model("qwen2", tie_word_embeddings=True), targets=["lm_head"]),
    "experts": lambda: with_lora(random_model("mixtral"), targets=["q_proj", "o_proj"]),
    "saved": lambda: with_lora(random_model("llama"), targets=["q_proj"], modules_to_save=["lm_head"]),
}


@pytest.mark.parametrize("make", slow_except(MODELS, "lora", "4 bits", "tied", "experts"))
def test_same_files_as_of_a_model_that_was_merged_before(tmp_path, make):
    model = make()
    later = copy.deepcopy(model)
    merging.merge(model).save_pretrained(tmp_path / "before")
    save_merged_later(later, tmp_path / "later")
    before, after = weights(tmp_path / "before"), weights(tmp_path / "later")
    assert before.keys() == after.keys()
    assert all(value.dtype == after[name].dtype and torch.equal(value, after[name]) for name, value in before.items())
    assert files(tmp_path / "before").keys() == files(tmp_path / "later").keys()
    assert (tmp_path / "before" / "config.json").read_text() == (tmp_path / "later" / "config.json").read_text()


@pytest.mark.parametrize("stream_from", ["host", "disk"])
def test_a_model_with_streamed_blocks_is_merged(tmp_path, stream_from):
    base = random_model("llama")
    nf4.quantize(base, nf4.real_layer, compute=torch.float32, double=True)
    streamed = with_lora(base)
    settings = Settings(streamed_blocks=2, stream_from=stream_from)
    placement.move(streamed, object(), settings, torch.device("cpu"))
    merging.merge(with_lora(packed_model())).save_pretrained(tmp_path / "resident")
    save_merged_later(streamed, tmp_path / "streamed")
    resident, merged = weights(tmp_path / "resident"), weights(tmp_path / "streamed")
    assert all(torch.equal(value, merged[name]) for name, value in resident.items())


def test_one_merged_weight_is_in_memory_at_a_time(tmp_path, monkeypatch):
    alive, most, merged_weight = weakref.WeakSet(), [], merging._merged_weight

    def track(*layer):
        weight = merged_weight(*layer)
        gc.collect()
        alive.add(weight)
        most.append(len(alive))
        return weight

    monkeypatch.setattr(merging, "_merged_weight", track)
    model, unwritten = with_lora(random_model("llama")), UnwrittenWeights()
    unwritten.save(merging.merge(model, unwritten.add), tmp_path)
    assert most == [1] * 6
    assert not unwritten._computations  # which refer to the weights of the base


def test_a_model_of_which_parts_are_stored_has_its_values_before(tmp_path, monkeypatch):
    """As if transformers stored halves of a weight that is one in memory."""
    model = with_lora(random_model("llama"))
    expected = merging.merge(copy.deepcopy(model)).state_dict()
    unwritten = UnwrittenWeights()
    merged = merging.merge(model, unwritten.add)
    save, state_dict = type(merged).save_pretrained, merged.state_dict
    name = "model.layers.0.self_attn.q_proj.weight"

    def with_halves(*_):
        state = state_dict()
        state[f"{name}.0"], state[f"{name}.1"] = state.pop(name).chunk(2)
        return state

    monkeypatch.setattr(merged, "save_pretrained", lambda folder: save(merged, folder, state_dict=with_halves()))
    unwritten.save(merged, tmp_path)
    saved = weights(tmp_path)
    assert torch.equal(torch.cat([saved[f"{name}.0"], saved[f"{name}.1"]]), expected[name])
