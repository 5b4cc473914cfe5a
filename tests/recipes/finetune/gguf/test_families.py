"""Names, layouts and refusals of the families that are written as GGUF."""

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring_recipes.finetune.gguf import families
from tests.recipes.finetune.exported_models import random_model


@pytest.mark.parametrize(
    ("family", "changes", "problem"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act=gelu"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "1 layers with sliding_attention"),
        ("qwen3", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6}}, "rope_type=llama3: only default"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "only default and llama3"),
    ],
)
def test_variants_that_llama_cpp_computes_otherwise_are_refused(family, changes, problem):
    config = random_model(family).config
    for name, value in changes.items():
        setattr(config, name, value)
    with pytest.raises(UsageError) as raised:
        families.find_family(config)
    assert problem in "\n".join(raised.value.problems)


def test_parameters_of_earlier_versions_are_read():
    class Config:
        rope_scaling, rope_theta, hidden_size, num_attention_heads = {"type": "linear", "factor": 2.0}, 5e5, 64, 4

    assert families.rope(Config())["rope_type"] == "linear"
    assert families.rope(Config())["rope_theta"] == 5e5
    assert families.head_size(Config()) == 16


def test_tensors_without_a_name_are_refused():
    config = random_model("qwen2").config
    with pytest.raises(UsageError, match="no name for tensors"):
        families.tensor_names(families.FAMILIES["qwen2"], config, ["model.layers.0.self_attn.extra.weight"])


def test_queries_and_keys_of_llama_have_neighbours_as_pairs():
    config = random_model("llama").config  # 4 heads of 8 values, 2 of keys
    rows = torch.arange(32.0).unsqueeze(1)
    llama, qwen = families.FAMILIES["llama"], families.FAMILIES["qwen2"]
    queries = families.in_layout(llama, config, "model.layers.0.self_attn.q_proj.weight", rows)
    assert queries[:10, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12]
    keys = families.in_layout(llama, config, "model.layers.0.self_attn.k_proj.bias", torch.arange(16.0))
    assert keys[8:].tolist() == [8, 12, 9, 13, 10, 14, 11, 15]
    values = families.in_layout(llama, config, "model.layers.0.self_attn.v_proj.weight", rows)
    assert torch.equal(values, rows)
    assert torch.equal(families.in_layout(qwen, config, "model.layers.0.self_attn.q_proj.weight", rows), rows)


def test_factors_of_a_scaled_context():
    assert families.rope_factors(random_model("llama", head_dim=64).config) is None
    # As in published configurations, a form that every version of transformers reads.
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = families.rope_factors(random_model("llama", head_dim=64, rope_theta=5e5, rope_scaling=scaling).config)
    # Those of Llama 3.2 1B, as llama.cpp's converter writes them.
    assert factors.shape == (32,) and factors.dtype == torch.float32
    assert factors[:15].tolist() == pytest.approx([1.0] * 15, abs=1e-5)
    assert factors[-14:].tolist() == pytest.approx([32.0] * 14, rel=1e-5)
    assert 1 < factors[15] < factors[16] < factors[17] < 32
