"""The buffers of reductions that several blocks of threads divide among them.

The bytes are those that the allocator of PyTorch 2.10 was asked for in these reductions on simulated GPUs, which have
the multiprocessors of the real ones.
"""

import pytest
import torch

from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.kernel_buffers import buffer_bytes
from shoestring.planning.trace import reductions

ATEN = torch.ops.aten
HALF, FULL = torch.float16, torch.float32
BIAS = (4096, 768)


@pytest.mark.parametrize(
    ("operator", "shape", "arguments", "dtype", "device", "sizes"),
    [
        (ATEN.sum.dim_IntList, BIAS, ([0],), HALF, "t4", (21_233_664, 24)),
        (ATEN.sum.dim_IntList, (4096, 3072), ([0],), FULL, "t4", (22_020_096, 96)),
        (ATEN.sum.dim_IntList, (32, 197, 768), ([0, 1],), FULL, "t4", (21_233_664, 24)),
        (ATEN.sum.dim_IntList, (8, 512, 768), ([-1],), FULL, "t4", ()),
        (ATEN.sum.dim_IntList, (64, 16), ([0],), FULL, "t4", ()),
        (ATEN.sum.default, (8, 512, 768), (), FULL, "t4", (320, 4)),
        (ATEN.mean.default, (8, 512, 768), (), FULL, "t4", (320, 4)),
        (ATEN.var.correction, BIAS, ([0],), FULL, "t4", (84_934_656, 24)),
        (ATEN.amax.default, BIAS, ([0],), FULL, "t4", (21_233_664, 24)),
        (ATEN.max.dim, BIAS, (0,), FULL, "t4", (84_934_656, 24)),
        (ATEN.any.default, BIAS, (), torch.bool, "t4", (80, 4)),
    ],
)
def test_buffers_are_those_of_the_allocator(operator, shape, arguments, dtype, device, sizes):
    values = torch.empty(shape, dtype=dtype, device="meta")
    reduction = reductions.reduction(operator, (values, *arguments), {})
    assert (buffer_bytes(reduction, DEVICES[device]) if reduction else ()) == sizes


def test_a_transposed_input_is_reduced_along_its_memory():
    rows = torch.empty(40960, 64, device="meta")
    assert reductions.of_tensor(rows.T, [1], None) == reductions.of_tensor(rows, [0], None) is not None


def test_an_input_beyond_32_bits_is_reduced_in_parts():
    whole, half = (torch.empty(rows, 1024, device="meta") for rows in (2**20, 2**19))
    assert reductions.of_tensor(whole, [0], None) == reductions.of_tensor(half, [0], None)


def test_a_convolutions_bias_is_a_reduction_if_it_needs_a_gradient():
    gradient = torch.empty(32, 64, 64, 64, dtype=HALF, device="meta")
    operands = (gradient, None, None, [64], [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    operator = ATEN.convolution_backward.default
    assert reductions.reduction(operator, (*operands, [True, True, False]), {}) is None
    bias = reductions.reduction(operator, (*operands, [True, True, True]), {})
    assert buffer_bytes(bias, DEVICES["t4"]) == (512, 256)
