"""`hf:` recipes: loading, building and tracing, checked with the counts of a small model."""

import dataclasses
import sys
import types

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
import transformers

from shoestring.base.config import parse_pairs
from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import DEVICES
from shoestring.integrations.huggingface import configuration, diffusion, versions
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Trace
from shoestring.recipe.finding import find, load
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import adapt, checkpointing
from tests.integrations.huggingface import tiny


@pytest.fixture
def llama(tmp_path):
    return tiny.write(tmp_path, tiny.LLAMA)


def build_on_meta(path, **options):
    loaded = load(f"hf:{path}", options)
    with torch.device("meta"):
        return adapt.model(loaded.recipe.model(), loaded.adaptation)


def test_references_are_absolute_paths(llama, monkeypatch):
    monkeypatch.chdir(llama.parent)
    for source, path in ((str(llama), llama), (".", llama.parent), ("config.json", llama)):
        loaded = find(f"hf:{source}")
        assert loaded.name == loaded.reference == f"hf:{path}"
        assert loaded.path is None
    assert load(loaded.reference, {"seq_len": "64", "lora_r": "8"}).recipe.options.seq_len == 64


def test_dots_in_keys_are_underscores(llama):
    assert load(f"hf:{llama}", parse_pairs(["lora.r=8", "lora.alpha=none"])).adaptation.lora_r == 8
    with pytest.raises(UsageError, match="set twice"):
        parse_pairs(["lora.r=8", "lora_r=4"])


def test_invalid_references_and_options_are_reported(llama, tmp_path):
    with pytest.raises(UsageError, match="no file"):
        find(f"hf:{tmp_path}/missing.json")
    with pytest.raises(UsageError, match="names no model"):
        find("hf:")
    with pytest.raises(UsageError) as caught:
        load(f"hf:{llama}", {"loss_chunk": 0, "seq_len": 0})
    assert len(caught.value.problems) == 2
    with pytest.raises(UsageError, match="cannot be used") as caught:
        build_on_meta(llama, lora_r=4, lora_targets="q_proj,p_proj")
    assert caught.value.problems == ("the model has no module 'p_proj'",)


def test_unknown_model_type_is_rejected(tmp_path):
    path = tiny.write(tmp_path, tiny.LLAMA, model_type="from_tomorrow")
    with pytest.raises(UsageError, match="from_tomorrow"):
        find(f"hf:{path}").recipe.model()


def test_architectures_decide_head_and_labels(tmp_path):
    path = tiny.write(tmp_path, tiny.BERT)
    recipe = load(f"hf:{path}", {"seq_len": 16}).recipe
    assert type(recipe.model()).__name__ == "BertForSequenceClassification"
    assert {name: tuple(x.shape) for name, x in recipe.batch(3).items()} == {"input_ids": (3, 16), "labels": (3,)}
    (tmp_path / "other").mkdir()
    path = tiny.write(tmp_path / "other", tiny.BERT, architectures=["BertForQuestionAnswering"])
    recipe = load(f"hf:{path}", {"seq_len": 64}).recipe
    assert set(recipe.batch(1)) == {"input_ids", "start_positions", "end_positions"}


def test_only_learned_positions_limit_seq_len(tmp_path, llama):
    assert load(f"hf:{llama}", {"seq_len": 257}).recipe.batch(1)["labels"].shape == (1, 257)
    path = tiny.write(tmp_path, tiny.BERT)
    recipe = load(f"hf:{path}", {"seq_len": 65}).recipe
    assert recipe.batch(1)["input_ids"].shape == (1, 64)
    assert any("64 positions" in note for note in recipe.notes())
    path = tiny.write(tmp_path, tiny.BERT, model_type="roberta", architectures=["RobertaForMaskedLM"], pad_token_id=1)
    assert load(f"hf:{path}", {"seq_len": 65}).recipe.batch(1)["labels"].shape == (1, 62)


def test_lora_is_fp32_on_a_frozen_fp16_base(llama):
    trainable = {n: p for n, p in build_on_meta(llama, lora_r=4, weights="fp16").named_parameters() if p.requires_grad}
    # In each of two blocks, query and output are 128 x 128, key and value 128 x 64.
    assert sum(p.numel() for p in trainable.values()) == 2 * 4 * (2 * (128 + 128) + 2 * (128 + 64))
    assert {p.dtype for p in trainable.values()} == {torch.float32}
    base = [p for p in build_on_meta(llama, lora_r=4, weights="fp16").parameters() if not p.requires_grad]
    assert {p.dtype for p in base} == {torch.float16}
    assert sum(p.numel() for p in base) == tiny.LINEAR_WEIGHTS + tiny.OTHER_WEIGHTS


def test_a_small_model_trains_with_adapters(llama):
    loaded = load(f"hf:{llama}", {"seq_len": 8, "lora_r": 2})
    recipe, model = loaded.recipe, adapt.model(loaded.recipe.model(), loaded.adaptation)
    assert checkpointing.apply(model, recipe, "full") == 2
    optimizer = recipe.optimizer(model)
    recipe.loss(model, recipe.batch(2)).backward()
    nonzero = [p.grad.abs().sum() > 0 for n, p in model.named_parameters() if "lora_B" in n]
    assert len(nonzero) == 8 and all(nonzero)
    optimizer.step()


TOKENS = 72
"""A sequence length whose square is not the size of any other tensor of these models."""


def trace_recipe(loaded, **settings) -> Trace:
    with Tracer(loaded) as tracer:
        return tracer.trace(Settings(micro_batch=2, precision="fp32", **settings), accumulate=1, device=DEVICES["t4"])


def forked(loaded: LoadedRecipe) -> LoadedRecipe:
    """Return a recipe that is traced in a fork of this process, which has already imported transformers."""
    return dataclasses.replace(loaded, is_live=True)


def bytes_of(trace: Trace, part: str) -> int:
    return sum(storage.bytes for storage in trace.storages if storage.part == part)


@pytest.fixture(scope="module")
def qlora(tmp_path_factory):
    path = tiny.write(tmp_path_factory.mktemp("qlora"), tiny.LLAMA)
    options = {"seq_len": TOKENS, "lora_r": 4, "quantization": "nf4", "weights": "fp16"}
    return trace_recipe(load(f"hf:{path}", options), checkpointing="full")


def test_4_bit_weights_take_half_a_byte(qlora):
    adapters = qlora.facts.parameters_trainable
    assert bytes_of(qlora, "weights") == tiny.LINEAR_WEIGHTS // 2 + 4 * tiny.OTHER_WEIGHTS + 4 * adapters
    scales, tables, rope = tiny.LINEAR_WEIGHTS // 64 * 4, 14 * 16 * 4, 16 * 4
    # transformers 5 has the frequencies of rotary positions twice, 4.56 has the second ones outside of the buffers.
    assert bytes_of(qlora, "buffers") - scales - tables in (rope, 2 * rope)
    assert qlora.facts.parameters_total == tiny.LINEAR_WEIGHTS + tiny.OTHER_WEIGHTS + adapters


def test_sdpa_has_no_score_matrix(qlora):
    """Attention with repeated heads uses the memory-efficient kernel, without a mask of all pairs of positions."""
    names = {event.name for event in qlora.events if hasattr(event, "flops")}
    assert "aten::_scaled_dot_product_efficient_attention" in names
    assert "aten::_softmax" not in names
    assert {TOKENS * TOKENS, 2 * TOKENS * TOKENS}.isdisjoint(storage.bytes for storage in qlora.storages)


@pytest.mark.parametrize(
    ("device", "kernel", "notes"),
    [("t4", "aten::_safe_softmax", 1), ("l4", "aten::_scaled_dot_product_flash_attention", 0)],
)
def test_heads_that_the_library_shares_need_flash_attention(llama, device, kernel, notes):
    loaded = forked(load(f"hf:{llama}", {"seq_len": TOKENS, "attention": "library", "effective_batch": 2}))
    with Tracer(loaded) as tracer:
        settings = Settings(micro_batch=2, precision="fp16", checkpointing="no")
        trace = tracer.trace(settings, accumulate=1, device=DEVICES[device])
    names = {event.name for event in trace.events if hasattr(event, "flops")}
    attentions = names & {"aten::_safe_softmax", "aten::_scaled_dot_product_flash_attention"}
    assert attentions == {kernel} and "aten::_scaled_dot_product_efficient_attention" not in names
    assert len(trace.bounds) == notes and all("4 heads share the keys of 2" in note for note in trace.bounds)
    assert [note for note in trace.facts.notes if not note.startswith("all samples have")] == []


def test_eager_attention_has_fp32_scores_without_a_copy(llama):
    options = {"seq_len": TOKENS, "lora_r": 4, "weights": "fp16", "attention": "eager"}
    trace = trace_recipe(forked(load(f"hf:{llama}", options)))
    names = [event.name for event in trace.events if hasattr(event, "flops")]
    assert names.count("aten::_softmax") == 2 * 2
    scores = 2 * 4 * TOKENS * TOKENS
    fp32_count = sum(storage.bytes == 4 * scores for storage in trace.storages)
    # In each of two updates and two blocks: the softmax, its gradient, and the product inside its backward.
    assert fp32_count == 2 * 2 * 3


@pytest.mark.parametrize("options", [{}, {"lora_r": 2}])
def test_chunked_loss_equals_the_models_loss(llama, options):
    results = {}
    for chunk in (None, 5):
        loaded = load(f"hf:{llama}", {"seq_len": 8, "loss_chunk": chunk, **options})
        torch.manual_seed(0)
        recipe, model = loaded.recipe, adapt.model(loaded.recipe.model(), loaded.adaptation)
        batch = {name: torch.arange(16).view(2, 8) for name in ("input_ids", "labels")}
        loss = recipe.loss(model, batch)
        loss.backward()
        results[chunk] = [loss.detach(), *(p.grad for p in model.parameters() if p.requires_grad)]
    assert len(results[5]) > 2
    torch.testing.assert_close(results[None], results[5])


def test_chunked_loss_requires_a_plain_causal_model(tmp_path):
    with pytest.raises(UsageError, match="no causal language model"):
        build_on_meta(tiny.write(tmp_path, tiny.BERT), loss_chunk=4)
    with pytest.raises(UsageError, match="logits_scaling"):
        build_on_meta(tiny.write(tmp_path, tiny.LLAMA, logits_scaling=8.0), loss_chunk=4)
    options = {"seq_len": 8, "loss_chunk": 4, "lora_r": 2, "lora_targets": "lm_head"}
    loaded = load(f"hf:{tiny.write(tmp_path, tiny.LLAMA)}", options)
    model = adapt.model(loaded.recipe.model(), loaded.adaptation)
    with pytest.raises(UsageError, match="the head is"):
        loaded.recipe.loss(model, loaded.recipe.batch(1))


@pytest.mark.slow
def test_chunked_loss_never_stores_all_logits(llama):
    def largest_storage(**options):
        trace = trace_recipe(forked(load(f"hf:{llama}", {"seq_len": 200, "effective_batch": 2, **options})))
        return max(storage.bytes for storage in trace.storages if storage.part != "weights")

    vocabulary = tiny.LLAMA["vocab_size"]
    assert largest_storage() >= 4 * 2 * 200 * vocabulary > largest_storage(loss_chunk=8)


@pytest.mark.slow
def test_bitsandbytes_states_take_one_byte_per_value(llama):
    whole, small, paged = (
        bytes_of(
            trace_recipe(forked(load(f"hf:{llama}", {"seq_len": 8, "optimizer_states": states}))), "optimizer states"
        )
        for states in ("own", "8bit", "paged_8bit")
    )
    assert 0.25 * whole < small < 0.3 * whole
    assert paged <= small


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": 10**5}, "num_hidden_layers=100000: must be from 1 to 1000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0: must be from 1"),
        ({"vocab_size": 10**9}, "vocab_size=1000000000: must be from 1 to 16777216"),
        ({"hidden_size": -1}, "hidden_size=-1: must be from 1"),
        ({"num_attention_heads": 10**30}, "num_attention_heads=1000"),
        ({"num_local_experts": 10**9}, "num_local_experts=1000000000: must be from 0 to 4096"),
        # The library's own words, which differ between versions.
        ({"hidden_size": "x"}, r"is no configuration of llama: \w+: .*\bint\b.*\bstr\b|llama: \w+: .*'str' and 'int'"),
        ({"rope_scaling": "x"}, r"is no configuration of llama: \w+: .*(rope_parameters|rope_scaling|'str' object)"),
    ],
)
def test_sizes_that_no_model_has_are_refused_with_their_bounds(tmp_path, changes, problem):
    with pytest.raises(UsageError, match=problem):
        configuration.read(str(tiny.write(tmp_path, {**tiny.LLAMA, **changes})))


def test_positions_of_a_file_are_used_or_the_file_is_refused(tmp_path):
    """transformers 5 writes rotary positions in a field that 4.56 keeps without using it."""
    parameters = {"rope_type": "default", "rope_theta": 5e5}
    path = str(tiny.write(tmp_path, {**tiny.LLAMA, "rope_parameters": parameters}))
    if hasattr(transformers.LlamaConfig(), "rope_parameters"):
        assert configuration.read(path).rope_parameters == parameters
    else:
        with pytest.raises(UsageError, match=r"rope_parameters=.*500000\.0.* does not read them") as refused:
            configuration.read(path)
        assert refused.value.hint.startswith("install transformers 5")
    both = {"rope_parameters": parameters, "rope_theta": 5e5}
    assert configuration.read(str(tiny.write(tmp_path, {**tiny.LLAMA, **both})))


def test_positions_that_are_not_used_are_found_in_every_form():
    def unread(parameters, **used):
        text = types.SimpleNamespace(rope_parameters=parameters, **used)
        found = [versions.unread_positions(config) for config in (text, types.SimpleNamespace(text_config=text))]
        assert found[0] == found[1]
        return found[0]

    scaled = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}
    assert unread(scaled) is None  # transformers 5
    assert unread(None, rope_theta=5e5) is None  # a file of 4.56
    assert unread(scaled, rope_theta=1e4, rope_scaling=None) == scaled
    assert unread(scaled, rope_theta=5e5, rope_scaling=None) == scaled
    assert unread(scaled, rope_theta=5e5, rope_scaling={"rope_type": "llama3", "factor": 8.0}) is None
    assert unread({"full_attention": scaled, "sliding_attention": {}}, rope_theta=1e4) == scaled
    assert unread({"rope_type": "default", "rope_theta": 1e4}, rope_theta=1e4) is None


def test_fields_of_own_names_have_the_same_bounds_and_infinity_is_a_time(tmp_path):
    gpt2 = {"model_type": "gpt2", "n_layer": 0, "n_head": 2, "n_embd": 64, "vocab_size": 100}
    with pytest.raises(UsageError, match="n_layer=0: must be from 1"):
        configuration.read(str(tiny.write(tmp_path, gpt2)))
    assert configuration.read(str(tiny.write(tmp_path, {**tiny.LLAMA, "time_limit": [0.0, float("inf")]})))
    special = {"__float__": "Infinity"}
    mamba = {
        "model_type": "mamba2",
        "num_heads": 4,
        "head_dim": 8,
        "hidden_size": 16,
        "time_step_limit": [0.0, special],
    }
    assert configuration.read(str(tiny.write(tmp_path, mamba))).time_step_limit[1] == float("inf")
    with pytest.raises(UsageError, match="names no model_type"):
        configuration.read(str(tiny.write(tmp_path, {"hidden_size": 4})))


def test_experts_that_nf4_does_not_pack_are_a_note(tmp_path, qlora):
    experts = {"num_local_experts": 4, "num_experts_per_tok": 1, "architectures": ["MixtralForCausalLM"]}
    path = tiny.write(tmp_path, tiny.LLAMA, model_type="mixtral", **experts)
    loaded = load(f"hf:{path}", {"lora_r": 4, "quantization": "nf4"})
    base = loaded.recipe.model()
    if any(isinstance(module, torch.nn.ModuleList) and "experts" in name for name, module in base.named_modules()):
        pytest.skip("the experts of transformers 4.56 are ordinary layers, which nf4 packs")
    note, share = adapt.notes(adapt.model(base, loaded.adaptation), loaded)
    assert share.startswith("lora_targets=attention adapts 11% of the weights of the model's blocks; without adapters")
    bytes_ = 2 * 4 * 3 * 128 * 256 * 4
    assert "experts" in note and f"stay in float32, {bytes_ / 2**20:.2f} MiB" in note
    assert f"such as Unsloth, stores them in {bytes_text(bytes_ * (1 / 2 + 4 / 64) / 4)}" in note
    assumed, length, share = qlora.facts.notes
    assert share.startswith("lora_targets=attention adapts 33%")
    assert length.startswith("all samples have")
    assert assumed.startswith("keys and values are repeated") and assumed.endswith("attention=library")


class Denoiser(torch.nn.Module):
    """A model with the interface of diffusers' UNets."""

    @classmethod
    def from_config(cls, values):
        model = cls()
        model.layer = torch.nn.Conv2d(values["in_channels"], values["out_channels"], 1)
        return model

    def forward(self, sample, timestep, encoder_hidden_states):
        assert encoder_hidden_states.shape == (len(timestep), 77, 6)
        return types.SimpleNamespace(sample=self.layer(sample))


def test_diffusers_is_optional_and_named_where_it_is_missing(tmp_path, monkeypatch):
    values = {"_class_name": "UNet2DConditionModel", "in_channels": 4, "out_channels": 4, "sample_size": 8}
    recipe = load(f"hf:{tiny.write(tmp_path, {**values, 'cross_attention_dim': 6})}", {}).recipe
    monkeypatch.setattr(diffusion, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="UNet2DConditionModel is a model of diffusers") as caught:
        recipe.model()
    assert "pip install diffusers" in caught.value.hint
    monkeypatch.setattr(diffusion, "find_spec", lambda _: True)
    library = types.SimpleNamespace(UNet2DConditionModel=Denoiser, __version__="1")
    monkeypatch.setitem(sys.modules, "diffusers", library)
    assert recipe.loss(recipe.model(), recipe.batch(3)).isfinite()
    assert "77 tokens" in recipe.notes()[0]
    path = tiny.write(tmp_path, {**values, "_class_name": "VQModel"})
    with pytest.raises(UsageError, match="has no model VQModel"):
        load(f"hf:{path}", {}).recipe.model()
    with pytest.raises(UsageError, match="inputs of VQModel"):
        load(f"hf:{path}", {}).recipe.batch(1)


def test_folder_of_an_adapter_names_its_base(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}')
    with pytest.raises(UsageError, match=r"has the adapter of a model \(org/base\), and not the model itself") as error:
        load(f"hf:{tmp_path}", {}).recipe.model()
    assert "merge_and_unload" in error.value.hint
