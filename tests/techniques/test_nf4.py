"""Layers with packed weights: what they keep, that gradients pass through, and that states come back to the bit."""

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn

from shoestring.errors import UsageError
from shoestring.techniques import nf4
from shoestring.techniques.nf4 import Nf4Linear


def test_double_quantisation_takes_a_byte_for_a_scale_and_a_number_for_256():
    layer = Nf4Linear(nn.Linear(256, 512, bias=False), compute=torch.float16, double=True)
    blocks = 256 * 512 // 64
    assert layer.weight.numel() * layer.weight.element_size() == 256 * 512 // 2
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in layer.named_buffers()}
    assert (sizes["scales"], sizes["scales_of_scales"]) == (blocks, blocks // 256 * 4)


def test_the_result_has_the_type_of_what_went_in_and_only_the_packed_weight_is_kept():
    layer = Nf4Linear(nn.Linear(64, 32), compute=torch.bfloat16, double=False)
    kept = []
    values = torch.zeros(4, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        result = layer(values)
    assert (result.dtype, tuple(result.shape)) == (torch.float32, (4, 32))
    assert [tensor.dtype for tensor in kept] == [torch.uint8]
    result.sum().backward()
    assert values.grad is not None and values.grad.shape == values.shape


def packed(seed=0, *, double=True, compute=torch.float32):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 4))
    nf4.quantize(model.to(compute), nf4.real, compute=compute, double=double)
    return model.to("cpu")


def test_without_bitsandbytes_the_extra_is_named(monkeypatch):
    from shoestring.recipe import extras

    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed: bitsandbytes") as refused:
        packed()
    assert "shoestring[bitsandbytes]" in str(refused.value)


@pytest.mark.parametrize("double", [False, True])
def test_real_layers_store_what_pretended_ones_do(double):
    pytest.importorskip("bitsandbytes")
    real = packed(double=double)[0]
    pretended = Nf4Linear(nn.Linear(64, 96), compute=torch.float32, double=double)
    sizes = [
        sorted(x.nbytes for name, x in layer.state_dict().items() if name != "bias") for layer in (real, pretended)
    ]
    assert sizes[0] == sizes[1]
    random = torch.get_rng_state()
    nf4.real(nn.Linear(64, 96), torch.float32, double)
    torch.set_rng_state(random)
    like = nn.Linear(64, 96)
    after = torch.get_rng_state()
    nf4.real(like, torch.float32, double)
    assert torch.equal(torch.get_rng_state(), after)


def test_real_layers_are_near_what_they_were():
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    plain, values = nn.Linear(64, 96), torch.randn(8, 64)
    difference = (packed()[0](values) - plain(values)).std() / plain(values).std()
    assert 0.01 < difference < 0.2  # 16 values for a number


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_a_state_of_tensors_alone_comes_back_to_the_bit(tmp_path, double, compute):
    pytest.importorskip("bitsandbytes")
    from shoestring.checkpoint.fitting import misfits
    from shoestring.checkpoint.light import load_light, save_light

    one, other = (packed(seed, double=double, compute=compute) for seed in (0, 1))
    values = torch.randn(8, 64)
    assert one[0].weight.quant_state.dtype == compute  # what it is unpacked to
    assert {one[1].weight.dtype, one[2].weight.dtype} == {torch.float32}
    before = one(values)  # also what a first forward changes
    assert misfits(one.state_dict(), other.state_dict()) == []
    assert not torch.equal(other(values), before)
    save_light(tmp_path, one, {})
    load_light(tmp_path, other)
    assert torch.equal(other(values), before)
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in one.state_dict().items())
    # And evaluating packs nothing anew.
    other.eval()
    with torch.no_grad():
        other(values)
    assert torch.equal(other[0].weight, one[0].weight)


def test_scales_that_do_not_belong_change_nothing():
    pytest.importorskip("bitsandbytes")
    model = packed()
    state = {**model.state_dict(), "0.weight.absmax": torch.zeros(3, dtype=torch.uint8)}
    del state["0.weight.nested_offset"]
    with pytest.raises(RuntimeError, match=r"(?s)nested_offset.*absmax|absmax.*nested_offset"):
        model.load_state_dict(state)
