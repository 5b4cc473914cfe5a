"""`hf:`: found, built and followed, with the counts of a small model."""

import dataclasses

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch

from shoestring.config import parse_pairs
from shoestring.errors import UsageError
from shoestring.hardware.catalog import DEVICES
from shoestring.recipe.finding import find, load
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.techniques import adapt, checkpointing
from shoestring.trace import Tracer
from shoestring.trace.record import Trace
from tests.recipes.huggingface import tiny


@pytest.fixture
def llama(tmp_path):
    return tiny.write(tmp_path, tiny.LLAMA)


def built(path, **options):
    loaded = load(f"hf:{path}", options)
    with torch.device("meta"):
        return adapt.model(loaded.recipe.model(), loaded.adaptation)


def test_a_file_and_its_folder_are_found_from_anywhere(llama, monkeypatch):
    monkeypatch.chdir(llama.parent)
    for source, where in ((str(llama), llama), (".", llama.parent), ("config.json", llama)):
        found = find(f"hf:{source}")
        assert found.name == found.reference == f"hf:{where}"
        assert found.path is None
    assert load(found.reference, {"seq_len": "64", "lora_r": "8"}).recipe.options.seq_len == 64


def test_a_dot_in_a_key_is_the_fields_underscore(llama):
    assert load(f"hf:{llama}", parse_pairs(["lora.r=8", "lora.alpha=none"])).adaptation.lora_r == 8
    with pytest.raises(UsageError, match="set twice"):
        parse_pairs(["lora.r=8", "lora_r=4"])


def test_what_cannot_be_is_told_with_every_problem(llama, tmp_path):
    with pytest.raises(UsageError, match="no file"):
        find(f"hf:{tmp_path}/missing.json")
    with pytest.raises(UsageError, match="names no model"):
        find("hf:")
    with pytest.raises(UsageError) as caught:
        load(f"hf:{llama}", {"loss_chunk": 0, "seq_len": 0})
    assert len(caught.value.problems) == 2
    with pytest.raises(UsageError, match="cannot be used") as caught:
        built(llama, lora_r=4, lora_targets="q_proj,p_proj")
    assert caught.value.problems == ("the model has no module 'p_proj'",)


def test_a_kind_of_model_nobody_knows(tmp_path):
    path = tiny.write(tmp_path, tiny.LLAMA, model_type="from_tomorrow")
    with pytest.raises(UsageError, match="from_tomorrow"):
        find(f"hf:{path}").recipe.model()


def test_the_head_is_the_architectures_and_decides_the_labels(tmp_path):
    path = tiny.write(tmp_path, tiny.BERT)
    recipe = load(f"hf:{path}", {"seq_len": 16}).recipe
    assert type(recipe.model()).__name__ == "BertForSequenceClassification"
    assert {name: tuple(x.shape) for name, x in recipe.batch(3).items()} == {"input_ids": (3, 16), "labels": (3,)}
    (tmp_path / "other").mkdir()
    other = tiny.write(tmp_path / "other", tiny.BERT, architectures=["BertForQuestionAnswering"])
    answering = load(f"hf:{other}", {"seq_len": 64}).recipe
    assert set(answering.batch(1)) == {"input_ids", "start_positions", "end_positions"}


def test_positions_that_are_weights_end_and_rotary_ones_do_not(tmp_path, llama):
    assert load(f"hf:{llama}", {"seq_len": 257}).recipe.batch(1)["labels"].shape == (1, 257)
    path = tiny.write(tmp_path, tiny.BERT)
    with pytest.raises(UsageError, match="64 positions"):
        load(f"hf:{path}", {"seq_len": 65}).recipe.batch(1)


def test_lora_is_fp32_on_the_attention_of_a_frozen_fp16_base(llama):
    trained = {n: p for n, p in built(llama, lora_r=4, weights="fp16").named_parameters() if p.requires_grad}
    # Query and output have 128 by 128, key and value 128 by 64, in two blocks.
    assert sum(p.numel() for p in trained.values()) == 2 * 4 * (2 * (128 + 128) + 2 * (128 + 64))
    assert {p.dtype for p in trained.values()} == {torch.float32}
    base = [p for p in built(llama, lora_r=4, weights="fp16").parameters() if not p.requires_grad]
    assert {p.dtype for p in base} == {torch.float16}
    assert sum(p.numel() for p in base) == tiny.LINEAR_WEIGHTS + tiny.OTHER_WEIGHTS


def test_a_small_model_really_trains_with_adapters(llama):
    loaded = load(f"hf:{llama}", {"seq_len": 8, "lora_r": 2})
    recipe, model = loaded.recipe, adapt.model(loaded.recipe.model(), loaded.adaptation)
    assert checkpointing.apply(model, recipe, "full") == 2
    optimizer = recipe.optimizer(model)
    recipe.loss(model, recipe.batch(2)).backward()
    grown = [p.grad.abs().sum() > 0 for n, p in model.named_parameters() if "lora_B" in n]
    assert len(grown) == 8 and all(grown)
    optimizer.step()


TOKENS = 72
"""No other tensor of these models has the size of something squared."""


def followed(loaded, **settings) -> Trace:
    with Tracer(loaded) as tracer:
        return tracer.trace(Settings(micro_batch=2, precision="fp32", **settings), accumulate=1, device=DEVICES["t4"])


def here(loaded: LoadedRecipe) -> LoadedRecipe:
    """Followed in a fork of this process, which has transformers already."""
    return dataclasses.replace(loaded, is_live=True)


def bytes_of(trace: Trace, part: str) -> int:
    return sum(storage.bytes for storage in trace.storages if storage.part == part)


@pytest.fixture(scope="module")
def qlora(tmp_path_factory):
    path = tiny.write(tmp_path_factory.mktemp("qlora"), tiny.LLAMA)
    options = {"seq_len": TOKENS, "lora_r": 4, "quantization": "nf4", "weights": "fp16"}
    return followed(load(f"hf:{path}", options), checkpointing="full")


def test_four_bits_take_half_a_byte_and_the_rest_is_fp32(qlora):
    adapters = qlora.facts.parameters_trainable
    assert bytes_of(qlora, "weights") == tiny.LINEAR_WEIGHTS // 2 + 4 * tiny.OTHER_WEIGHTS + 4 * adapters
    scales, tables, rope = tiny.LINEAR_WEIGHTS // 64 * 4, 14 * 16 * 4, 2 * 16 * 4
    assert bytes_of(qlora, "buffers") == scales + tables + rope
    assert qlora.facts.parameters_total == tiny.LINEAR_WEIGHTS + tiny.OTHER_WEIGHTS + adapters


def test_no_square_of_scores_is_made(qlora):
    """Repeated heads go to the memory-efficient kernel, without a mask for each pair of positions."""
    names = {event.name for event in qlora.events if hasattr(event, "flops")}
    assert "aten::_scaled_dot_product_efficient_attention" in names
    assert "aten::_softmax" not in names
    assert {TOKENS * TOKENS, 2 * TOKENS * TOKENS}.isdisjoint(storage.bytes for storage in qlora.storages)


def test_eager_attention_makes_scores_in_fp32_without_a_copy_before(llama):
    options = {"seq_len": TOKENS, "lora_r": 4, "weights": "fp16", "attention": "eager"}
    trace = followed(here(load(f"hf:{llama}", options)))
    names = [event.name for event in trace.events if hasattr(event, "flops")]
    assert names.count("aten::_softmax") == 2 * 2
    scores = 2 * 4 * TOKENS * TOKENS
    in_fp32 = sum(storage.bytes == 4 * scores for storage in trace.storages)
    # In each of two updates and two blocks: softmax's result, its gradient, and the product inside its backward.
    assert in_fp32 == 2 * 2 * 3


@pytest.mark.parametrize("options", [{}, {"lora_r": 2}])
def test_a_loss_in_chunks_is_the_models_own(llama, options):
    found = {}
    for chunk in (None, 5):
        loaded = load(f"hf:{llama}", {"seq_len": 8, "loss_chunk": chunk, **options})
        torch.manual_seed(0)
        recipe, model = loaded.recipe, adapt.model(loaded.recipe.model(), loaded.adaptation)
        batch = {name: torch.arange(16).view(2, 8) for name in ("input_ids", "labels")}
        loss = recipe.loss(model, batch)
        loss.backward()
        found[chunk] = [loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)]
    assert len(found[5]) > 2
    torch.testing.assert_close(found[None], found[5])


def test_a_loss_in_chunks_is_for_plain_causal_models(tmp_path):
    with pytest.raises(UsageError, match="no causal language model"):
        built(tiny.write(tmp_path, tiny.BERT), loss_chunk=4)
    with pytest.raises(UsageError, match="logits_scaling"):
        built(tiny.write(tmp_path, tiny.LLAMA, logits_scaling=8.0), loss_chunk=4)
    options = {"seq_len": 8, "loss_chunk": 4, "lora_r": 2, "lora_targets": "lm_head"}
    loaded = load(f"hf:{tiny.write(tmp_path, tiny.LLAMA)}", options)
    model = adapt.model(loaded.recipe.model(), loaded.adaptation)
    with pytest.raises(UsageError, match="the head is"):
        loaded.recipe.loss(model, loaded.recipe.batch(1))


def test_a_loss_in_chunks_never_holds_all_logits(llama):
    def largest(**options):
        trace = followed(here(load(f"hf:{llama}", {"seq_len": 200, "effective_batch": 2, **options})))
        return max(storage.bytes for storage in trace.storages if storage.part != "weights")

    vocabulary = tiny.LLAMA["vocab_size"]
    assert largest() >= 4 * 2 * 200 * vocabulary > largest(loss_chunk=8)


def test_bitsandbytes_states_have_a_byte_a_value(llama):
    whole, small, paged = (
        bytes_of(followed(here(load(f"hf:{llama}", {"seq_len": 8, "optimizer_states": states}))), "optimizer states")
        for states in ("own", "8bit", "paged_8bit")
    )
    assert 0.25 * whole < small < 0.3 * whole
    assert paged <= small
