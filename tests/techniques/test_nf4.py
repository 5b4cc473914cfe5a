"""Layers with packed weights: their memory, their gradients, and bit-identical state dicts."""

import weakref

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.base.errors import UsageError
from shoestring.techniques import nf4
from shoestring.techniques.nf4 import Nf4Linear
from tests.libraries import hide


def test_double_quantization_has_8_bit_scales():
    layer = Nf4Linear(nn.Linear(256, 512, bias=False), compute=torch.float16, double=True)
    blocks = 256 * 512 // 64
    assert layer.weight.numel() * layer.weight.element_size() == 256 * 512 // 2
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in layer.named_buffers()}
    assert (sizes["scales"], sizes["scales_of_scales"]) == (blocks, blocks // 256 * 4)


def test_only_the_packed_weight_is_saved_for_backward():
    layer = Nf4Linear(nn.Linear(64, 32), compute=torch.bfloat16, double=False)
    saved = []
    values = torch.zeros(4, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        result = layer(values)
    assert (result.dtype, tuple(result.shape)) == (torch.float32, (4, 32))
    assert [tensor.dtype for tensor in saved] == [torch.uint8]
    result.sum().backward()
    assert values.grad is not None and values.grad.shape == values.shape


class Alive(TorchDispatchMode):
    """Records the sizes in bytes of the tensors that operators have made and that are there when each one is called."""

    def __init__(self):
        super().__init__()
        self.made, self.sizes = [], {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sizes = sorted(reference().nbytes() for reference in self.made if reference() is not None)
        self.sizes.setdefault(func.overloadpacket.__name__, []).append(sizes)
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("_to_copy", "empty_like", "add", "new_empty", "mm"):  # others make views
            self.made.append(weakref.ref(result.untyped_storage()))
        return result


def test_what_unpacking_takes_is_there_as_long_as_in_bitsandbytes():
    """`Linear4bit.forward` and `_dequant_linear_fallback` have variables that the placeholder must have too."""
    layer = Nf4Linear(nn.Linear(64, 32, bias=False), compute=torch.float16, double=True)
    values = torch.zeros(4, 64, requires_grad=True)
    copy, weight, scales, product = 4 * 64 * 2, 64 * 32 * 2, 64 * 32 // 64 * 4, 4 * 32 * 2
    with Alive() as alive:
        result = layer(values)
    assert alive.sizes["mm"] == [sorted([copy, weight, scales, scales])]
    assert alive.sizes["_to_copy"] == [[], sorted([copy, product])]  # the result, to fp32
    with Alive() as alive:
        result.sum().backward()
    assert alive.sizes["new_empty"][-1].count(scales) == 1 and scales not in alive.sizes["mm"][-1]


def build_packed_model(seed=0, *, double=True, compute=torch.float32):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 4))
    nf4.quantize(model.to(compute), nf4.real_layer, compute=compute, double=double)
    return model.to("cpu")


def test_missing_bitsandbytes_names_the_extra(monkeypatch):
    hide(monkeypatch, "bitsandbytes")
    with pytest.raises(UsageError, match=r"^bitsandbytes is not installed") as caught:
        build_packed_model()
    assert "[bitsandbytes]" in str(caught.value)


@pytest.mark.parametrize("double", [False, True])
def test_real_layers_and_placeholders_store_the_same_bytes(double):
    pytest.importorskip("bitsandbytes")
    real = build_packed_model(double=double)[0]
    placeholder = Nf4Linear(nn.Linear(64, 96), compute=torch.float32, double=double)
    sizes = [
        sorted(tensor.nbytes for name, tensor in layer.state_dict().items() if name != "bias")
        for layer in (real, placeholder)
    ]
    assert sizes[0] == sizes[1]
    rng_state = torch.get_rng_state()
    nf4.real_layer(nn.Linear(64, 96), torch.float32, double)
    torch.set_rng_state(rng_state)
    original = nn.Linear(64, 96)
    rng_state = torch.get_rng_state()
    nf4.real_layer(original, torch.float32, double)
    assert torch.equal(torch.get_rng_state(), rng_state)


def test_real_layers_approximate_the_original():
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    plain, values = nn.Linear(64, 96), torch.randn(8, 64)
    difference = (build_packed_model()[0](values) - plain(values)).std() / plain(values).std()
    assert 0.01 < difference < 0.2  # a weight has one of 16 values


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_light_weights_are_restored_bit_for_bit(tmp_path, double, compute):
    pytest.importorskip("bitsandbytes")
    from shoestring.training.checkpoint.compatibility import state_mismatches
    from shoestring.training.checkpoint.light import load_light, save_light

    saved, restored = (build_packed_model(seed, double=double, compute=compute) for seed in (0, 1))
    values = torch.randn(8, 64)
    assert saved[0].weight.quant_state.dtype == compute  # the type of the unpacked weight
    assert {saved[1].weight.dtype, saved[2].weight.dtype} == {torch.float32}
    expected = saved(values)  # before saving, because the first forward changes the layer
    assert state_mismatches(saved.state_dict(), restored.state_dict()) == []
    assert not torch.equal(restored(values), expected)
    save_light(tmp_path, saved, {})
    load_light(tmp_path, restored)
    assert torch.equal(restored(values), expected)
    assert all(torch.equal(tensor, restored.state_dict()[name]) for name, tensor in saved.state_dict().items())
    # Evaluation does not pack the weight again.
    restored.eval()
    with torch.no_grad():
        restored(values)
    assert torch.equal(restored[0].weight, saved[0].weight)


def test_scales_of_another_shape_are_refused():
    pytest.importorskip("bitsandbytes")
    model = build_packed_model()
    state = {**model.state_dict(), "0.weight.absmax": torch.zeros(3, dtype=torch.uint8)}
    del state["0.weight.nested_offset"]
    with pytest.raises(RuntimeError, match=r"(?s)nested_offset.*absmax|absmax.*nested_offset"):
        model.load_state_dict(state)


@pytest.mark.parametrize(("casts", "dtype"), [(True, torch.float32), (False, torch.float16)])
def test_what_stays_unpacked_is_fp32_or_keeps_its_type(casts, dtype):
    model = nn.Sequential(nn.Embedding(8, 64), nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 4)).half()
    nf4.quantize(model, nf4.placeholder_layer, compute=torch.float16, double=False, casts_others=casts)
    assert {model[place].weight.dtype for place in (0, 2, 3)} == {dtype}
    assert model[1].bias.dtype == torch.float16  # the type that the product is computed in
    assert not any(parameter.requires_grad for parameter in model.parameters())
