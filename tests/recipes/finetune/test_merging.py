"""Merged models compute what the adapter did, layer by layer, in one dtype."""

import pytest
import torch
from torch import nn

from shoestring.base.errors import RunError, UsageError
from shoestring.techniques import nf4
from shoestring_recipes.finetune import merging
from tests.recipes.finetune.exported_models import random_model, with_lora

TOKENS = torch.arange(3, 43).view(2, 20)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def packed_model(family: str = "llama", **changes):
    base = random_model(family, **changes)
    nf4.quantize(base, nf4.real_layer, compute=torch.float32, double=True)
    return base.to("cpu")  # packs the weights


def share(actual, expected) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"targets": ["embed_tokens", "lm_head"]},
        {"targets": ["q_proj"], "modules_to_save": ["lm_head"]},
    ],
    ids=["lora", "rslora", "dora", "embedding", "saved"],
)
def test_merged_model_computes_the_same(changes):
    model = with_lora(random_model("llama"), **changes)
    expected = model(TOKENS).logits
    merged = merging.merge(model)
    assert type(merged).__name__ == "LlamaForCausalLM"
    assert {type(layer) for layer in merged.modules() if "peft" in type(layer).__module__} == set()
    assert share(merged(TOKENS).logits, expected) < 1e-5


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_adapters_of_stacked_experts_are_merged(family):
    pytest.importorskip("peft", minversion="0.17")
    model = with_lora(
        random_model(family, num_local_experts=3, num_experts_per_tok=2),
        targets=["q_proj"],
        target_parameters=["experts.gate_up_proj", "experts.down_proj"],
    )
    expected, shapes = model(TOKENS).logits, merging.merged_shapes(model)
    merged = merging.merge(model)
    assert {type(layer) for layer in merged.modules() if "peft" in type(layer).__module__} == set()
    assert {name: tuple(weight.shape) for name, weight in merged.named_parameters()} == shapes
    assert share(merged(TOKENS).logits, expected) < 1e-5


@pytest.mark.parametrize("is_tied", [True, False])
def test_trained_rows_of_added_tokens_are_merged(is_tied):
    base = random_model("llama", tie_word_embeddings=is_tied)
    rows = {name: [334, 335] for name in ("model.embed_tokens", "lm_head")}
    model = with_lora(base, targets=["q_proj"], trainable_token_indices=rows)
    for name, weight in model.named_parameters():
        if "trainable_tokens" in name:
            weight.add_(torch.randn_like(weight))
    tokens = TOKENS.clone()
    tokens[0, 0] = 335
    expected, shapes = model(tokens).logits, merging.merged_shapes(model)
    merged = merging.merge(model)
    assert merged.config.tie_word_embeddings == is_tied
    assert {name: tuple(weight.shape) for name, weight in merged.named_parameters()} == shapes
    assert share(merged(tokens).logits, expected) < 1e-5


# "Model with" in peft 0.15
@pytest.mark.filterwarnings("ignore:Model (has|with) `tie_word_embeddings=True`")
def test_adapter_of_a_tied_output_layer_unties_it():
    model = with_lora(random_model("llama", tie_word_embeddings=True), targets=["lm_head"])
    expected, shapes = model(TOKENS).logits, merging.merged_shapes(model)
    merged = merging.merge(model)
    assert not merged.config.tie_word_embeddings
    assert shapes["lm_head.weight"] == shapes["model.embed_tokens.weight"] == (336, 32)
    assert share(merged(TOKENS).logits, expected) < 1e-5


def test_without_adapters_weights_stay_as_they_are():
    model = random_model("qwen2", tie_word_embeddings=True)
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    merged = merging.merge(model)
    assert merged.config.tie_word_embeddings
    assert all(torch.equal(weight, expected[name]) for name, weight in merged.state_dict().items())


@pytest.mark.parametrize("changes", [{}, {"use_dora": True}], ids=["lora", "dora"])
def test_packed_weights_become_fp16(changes):
    # Biases, and layers without an adapter, whose weights are unpacked too.
    model = with_lora(packed_model("qwen2"), targets=["q_proj"], **changes)
    expected = model(TOKENS).logits
    merged = merging.merge(model)
    assert {weight.dtype for weight in merged.parameters()} == {torch.float16}
    assert share(merged.float()(TOKENS).logits, expected) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_are_rounded_once(dtype):
    model = with_lora(random_model("llama").to(dtype))
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    exact = layer.base_layer.weight.double() + layer.get_delta_weight("default").double()
    merged = merging.merge(model)
    assert {weight.dtype for weight in merged.parameters()} == {dtype}
    assert torch.equal(merged.model.layers[0].self_attn.q_proj.weight, exact.float().to(dtype))


def test_one_layer_exists_twice_at_a_time(monkeypatch):
    alive, merged_weight = [], merging._merged_weight

    def count(*layer):
        alive.append(sum("base_layer" in name for name, _ in base.named_modules()))
        return merged_weight(*layer)

    monkeypatch.setattr(merging, "_merged_weight", count)
    model = with_lora(random_model("llama"), targets=["q_proj", "v_proj"])
    base = model.get_base_model()
    merging.merge(model)
    assert alive == [4, 3, 2, 1]


@pytest.mark.parametrize("make", [packed_model, random_model], ids=["packed", "plain"])
def test_shapes_are_those_of_the_merged_model(make):
    model = with_lora(make("qwen2", tie_word_embeddings=True), modules_to_save=["norm"])
    shapes = merging.merged_shapes(model)
    assert shapes == {name: tuple(weight.shape) for name, weight in merging.merge(model).named_parameters()}


def test_shapes_of_a_plan_are_those_of_training():
    base = random_model("llama")
    nf4.quantize(base, nf4.placeholder_layer, compute=torch.float16, double=True)
    with torch.device("meta"):
        planned = with_lora(base.to("meta"))
    assert merging.merged_shapes(planned) == merging.merged_shapes(with_lora(packed_model()))
    assert merging.stored_dtype(planned) == torch.float16


def test_adapters_that_are_not_of_layers_are_refused():
    model = with_lora(random_model("qwen2"), targets=["q_proj"], lora_bias=True)
    with pytest.raises(UsageError, match="cannot be merged") as raised:
        merging.merge(model)
    assert raised.value.problems == ("they have lora_bias",)


def test_weight_beyond_fp16_is_refused():
    model = with_lora(packed_model())
    model.get_base_model().model.norm.weight[0] = 70000
    with pytest.raises(RunError, match=r"model\.norm\.weight has a weight of 7e\+04"):
        merging.merge(model)


def test_mark_of_a_loaded_file_is_forgotten(tmp_path):
    model = with_lora(random_model("llama"))
    base = model.get_base_model()
    base.hf_quantizer, base.config.quantization_config = nn.Identity(), {"quant_method": "gguf"}
    merging.merge(model).save_pretrained(tmp_path)
    assert "quantization_config" not in (tmp_path / "config.json").read_text()
