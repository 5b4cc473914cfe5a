import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.parts import Parts
from shoestring.techniques import adapt, checkpointing, deferred_casts, fp32_modules
from shoestring.techniques.nf4 import Nf4Linear
from tests.overflowing import Model

TOKENS = torch.arange(8).reshape(2, 4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model((1, 2000))


def compute(model, *, precision=torch.float16):
    with torch.autocast("cpu", dtype=precision):
        return model(TOKENS)


def test_named_modules_compute_in_fp32_and_others_in_fp16(model):
    types = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _module, _inputs, output, name=name: types.update({name: output.dtype}))
    assert not compute(model).isfinite().all()
    assert fp32_modules.apply(model, "layers.1.mlp.down_proj") == 1
    result = compute(model)
    assert result.isfinite().all() and result.dtype == types["layers.0.mlp.down_proj"] == torch.float16
    assert types["layers.1.mlp.up_proj"] == torch.float16 and types["layers.1.mlp.down_proj"] == torch.float32
    assert torch.allclose(result.float(), model(TOKENS), rtol=1e-2, atol=1e-2)
    names = model.state_dict().keys()
    assert names == Model((1, 2000)).state_dict().keys()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, []),
        ("", []),
        ("layers.*.mlp.down_proj", ["layers.0.mlp.down_proj", "layers.1.mlp.down_proj"]),
        (" head , layers.1", ["layers.1", "head"]),
    ],
)
def test_names_and_numbers(model, setting, expected):
    assert list(fp32_modules.find(model, setting)) == expected


def test_unknown_names_are_refused_together(model):
    with pytest.raises(UsageError, match="Model has no such modules") as error:
        fp32_modules.apply(model, "head,layers.1.mlp.down_prj,layers.*,layers.7")
    assert [problem.partition(":")[0] for problem in error.value.problems] == ["layers.1.mlp.down_prj", "layers.7"]
    assert "did you mean layers.1.mlp.down_proj?" in error.value.problems[0]


def test_names_become_a_pattern_only_for_all_of_them(model):
    both = ["layers.0.mlp.up_proj", "layers.1.mlp.up_proj"]
    assert fp32_modules.as_setting(model, [*both, "head"]) == "layers.*.mlp.up_proj,head"
    assert fp32_modules.as_setting(model, both[1:]) == "layers.1.mlp.up_proj"
    assert fp32_modules.as_setting(nn.Sequential(nn.ReLU(), nn.ReLU(), nn.Linear(1, 1)), ["2", "0"]) == "2,0"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_weights_are_cast_within_and_get_their_gradient(model, dtype):
    model.to(dtype)
    exact = Model((1, 2000))
    exact.load_state_dict(model.state_dict())
    fp32_modules.apply(model, "embed,layers.*,norm,head")
    result = compute(model)
    assert torch.equal(result, exact(TOKENS))
    result.sum().backward()
    exact(TOKENS).sum().backward()
    for parameter, other in zip(model.parameters(), exact.parameters(), strict=True):
        assert isinstance(parameter, nn.Parameter) and parameter.dtype == dtype
        assert torch.equal(parameter.grad, other.grad.to(dtype))


def test_attention_of_torch_casts_the_weight_of_its_output_projection():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    exact = nn.MultiheadAttention(8, 2, batch_first=True)
    values = torch.randn(2, 4, 8).half()
    exact.load_state_dict(attention.half().state_dict())
    fp32_modules.apply(model := nn.ModuleDict({"attention": attention}), "attention")
    result, _ = model["attention"](values, values, values)
    # Equal to rounding: on some processors the kernels add in another order.
    torch.testing.assert_close(result, exact(*[values.float()] * 3)[0], rtol=1e-6, atol=1e-6)


def test_a_context_ends_without_traces(model):
    model.half()
    before = compute(model)
    fp32_modules.apply(model, "layers.1.norm")
    applied = model.layers[1].norm.forward
    with fp32_modules.applied([model, model.layers[1]]):
        assert compute(model).dtype == torch.float32
    assert compute(model).dtype == before.dtype == torch.float16
    assert model.layers[1].norm.forward is applied
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == ["layers.1.norm"]


def test_4_bit_layers_compute_in_fp32():
    layer = Nf4Linear(nn.Linear(8, 8), compute=torch.float16, double=False)
    types = []
    compute_layer = layer.forward
    layer.forward = lambda values: types.append((layer.compute, values.dtype)) or compute_layer(values)
    with fp32_modules.applied([nn.Sequential(layer)[0]]):
        assert layer(torch.ones(2, 8, dtype=torch.float16)).dtype == torch.float32
    layer(torch.ones(2, 8))
    assert types == [(torch.float32, torch.float32), (torch.float16, torch.float32)]


@pytest.mark.parametrize("checkpoints", ["before", "after"])
def test_recomputation_gives_the_same_gradients(model, checkpoints):
    plain = Model((1, 2000))
    plain.load_state_dict(model.state_dict())
    setting = "layers.0,layers.1.mlp.down_proj"
    fp32_modules.apply(plain, setting)
    if checkpoints == "before":
        checkpointing.apply(model, Parts(), "full")
    fp32_modules.apply(model, setting)
    if checkpoints == "after":
        checkpointing.apply(model, Parts(), "full")
    for each in (model, plain):
        compute(each).float().square().mean().backward()
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert parameter.grad.isfinite().all() and torch.equal(parameter.grad, other.grad), name


def test_layers_of_transformers_keep_their_own_recomputation():
    transformers = pytest.importorskip("transformers")
    configuration = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=16
    )
    model = transformers.LlamaForCausalLM(configuration).train()
    fp32_modules.apply(model, "model.layers.0")
    checkpointing.apply(model, Parts(), "full")
    layer = model.model.layers[0]
    assert layer.gradient_checkpointing and not checkpointing.is_recomputed(layer)
    with torch.autocast("cpu", dtype=torch.float16):
        model(TOKENS, labels=TOKENS).loss.backward()
    assert layer.mlp.down_proj.weight.grad.isfinite().all()


def test_an_adapter_and_its_fp16_base_compute_in_fp32(model):
    pytest.importorskip("peft")
    adaptation = Adaptation(lora_r=2, lora_targets="down_proj", weights="fp16")
    adapted = deferred_casts.convert_all(adapt.trained_model(model, adaptation, Settings()))
    assert not compute(adapted).isfinite().all()
    # Autocast on a CPU does not cast the fp16 weights of norms, whose inputs are now in fp32; that on a GPU does.
    norms = "base_model.model.layers.1.norm,base_model.model.norm"
    fp32_modules.apply(adapted, f"base_model.model.layers.*.mlp.down_proj,{norms}")
    result = compute(adapted)
    assert result.isfinite().all()
    result.float().sum().backward()
    weights = {name: weight for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert all(weight.grad.isfinite().all() for weight in weights.values())
    assert {weight.dtype for weight in adapted.parameters()} == {torch.float16, torch.float32}
