"""Layers with packed weights: what they keep, and that gradients pass through."""

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn

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
