"""The shape, the FLOPs and the preceding calls in the record of an operator."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from shoestring.planning.trace import products
from shoestring.planning.trace.record import Op, Reduction, SplitSum, Storage, Trace
from shoestring.planning.trace.recorder import Recorder, real
from shoestring.techniques.eightbit import BlockwiseAdamW
from shoestring.techniques.nf4 import Nf4Linear
from tests.planning.estimate.example_traces import FACTS

aten = torch.ops.aten


def meta(*sizes: int) -> Tensor:
    return torch.empty(sizes, device="meta")


def record_operators(run: Any) -> list[Op]:
    with Recorder(watched=real) as recorder:
        run()
    return [event for event in recorder.log.record()[1] if isinstance(event, Op)]


@pytest.mark.parametrize(
    ("func", "args", "shape"),
    [
        (aten.mm.default, (meta(4, 5), meta(5, 6)), (1, 4, 6, 5)),
        (aten.addmm.default, (meta(6), meta(4, 5), meta(5, 6)), (1, 4, 6, 5)),
        (aten.bmm.default, (meta(3, 4, 5), meta(3, 5, 6)), (3, 4, 6, 5)),
        (aten.baddbmm.default, (meta(1), meta(3, 4, 5), meta(3, 5, 6)), (3, 4, 6, 5)),
        (aten.add.Tensor, (meta(4), meta(4)), ()),
        (aten._scaled_dot_product_flash_attention.default, (meta(2, 3, 7, 8), meta(2, 3, 9, 8)), (6, 7, 9, 8)),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (meta(2, 3, 7, 8), meta(2, 3, 9, 8)), (6, 7, 9, 8)),
    ],
)
def test_shape_of_matrix_products(func: Any, args: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    assert products.shape(func, args, None) == shape


@pytest.mark.parametrize(
    ("stride", "groups", "channels_last", "shape"),
    [
        (1, 1, False, (1, 2 * 8 * 8, 6, 4 * 9, 3, 3, 8, 8, 1, 1, 0)),
        (2, 1, False, (1, 2 * 4 * 4, 6, 4 * 9, 3, 3, 4, 4, 2, 2, 0)),
        (1, 2, False, (2, 2 * 8 * 8, 3, 2 * 9, 3, 3, 8, 8, 1, 1, 0)),
        (1, 1, True, (1, 2 * 8 * 8, 6, 4 * 9, 3, 3, 8, 8, 1, 1, 1)),
    ],
)
def test_shape_of_convolutions_is_their_forward_product(
    stride: int, groups: int, channels_last: bool, shape: tuple[int, ...]
) -> None:
    weight = torch.zeros(6, 4 // groups, 3, 3, requires_grad=True)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def run() -> None:
        values = torch.zeros(2, 4, 8, 8).to(memory_format=memory_format).requires_grad_()
        functional.conv2d(values, weight, stride=stride, padding=1, groups=groups).sum().backward()

    forward, backward = (op for op in record_operators(run) if "convolution" in op.name)
    assert forward.shape == backward.shape == shape
    assert (forward.launches, backward.launches) == (1, 2)
    assert backward.flops == 2 * forward.flops


def test_sequences_are_images_of_height_one_and_volumes_products() -> None:
    ops = record_operators(
        lambda: (
            functional.conv1d(torch.zeros(2, 4, 9), torch.zeros(6, 4, 3), stride=2),
            functional.conv3d(torch.zeros(2, 4, 8, 8, 8), torch.zeros(6, 4, 3, 3, 3)),
        )
    )
    shapes = [op.shape for op in ops if "convolution" in op.name]
    assert shapes == [(1, 2 * 4, 6, 4 * 3, 1, 3, 1, 4, 1, 2, 0), (1, 2 * 6**3, 6, 4 * 27)]


def test_images_gradient_counts_only_if_required() -> None:
    weight = torch.zeros(6, 4, 3, 3, requires_grad=True)
    ops = record_operators(lambda: functional.conv2d(torch.zeros(2, 4, 8, 8), weight).sum().backward())
    assert [op.launches for op in ops if "convolution" in op.name] == [1, 1]


def test_attention_of_a_cpu_has_the_flops_of_its_products() -> None:
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert products.correct_flops(forward, (), {}, 0, (6, 7, 9, 8)) == 2 * 2 * 6 * 7 * 9 * 8
    assert products.correct_flops(backward, (), {}, 0, (6, 7, 9, 8)) == 5 * 2 * 6 * 7 * 9 * 8


@pytest.mark.parametrize("outputs", [6, 4])
def test_transposed_convolution_has_no_shape(outputs: int) -> None:
    ops = record_operators(
        lambda: functional.conv_transpose2d(torch.zeros(1, 4, 8, 8), torch.zeros(4, outputs, 2, 2), stride=2)
    )
    assert [op.shape for op in ops if "convolution" in op.name] == [()]


@pytest.mark.parametrize("passed_by", ["position", "name"])
def test_causal_mask_halves_the_flops_of_attention(passed_by: str) -> None:
    func = aten._scaled_dot_product_efficient_attention.default
    query = meta(1, 2, 8, 4)
    args = (query, query, query, None, True, 0.0)
    causal: tuple[tuple[Any, ...], dict[str, Any]] = (
        ((*args, True), {}) if passed_by == "position" else (args, {"is_causal": True})
    )
    assert products.correct_flops(func, *causal, 100, ()) == 50
    assert (
        products.correct_flops(func, args, {}, 100, ())
        == products.correct_flops(aten.mm.default, (), {}, 100, ())
        == 100
    )


def test_views_count_as_calls_of_the_next_operator() -> None:
    first, second = record_operators(lambda: torch.zeros(4, 6).view(6, 4).t().neg().mul(2.0))[-2:]
    assert (first.name, first.calls) == ("aten::neg", 3)
    assert (second.name, second.calls) == ("aten::mul.Tensor", 1)


def test_operator_survives_json() -> None:
    product = Op("aten::mm", 240, 4, "fp16", 1, 3, (1, 4, 6, 5))
    operators = (
        product,
        replace(product, buffers=Reduction(1024, 2, 512, 256)),
        replace(product, buffers=SplitSum(1024, 8)),
        replace(product, in_place=True),
    )
    trace = Trace(
        micro_batch=1,
        microbatches=1,
        precision="fp16",
        facts=FACTS,
        storages=(Storage(4, "weights"),),
        events=operators,
    )
    assert Trace.from_json(json.loads(json.dumps(trace.json()))).events == operators


def test_4_bit_weights_are_unpacked_forward_and_backward() -> None:
    layer = Nf4Linear(torch.nn.Linear(64, 32), compute=torch.float32, double=False)
    values = torch.zeros(2, 64, requires_grad=True)
    ops = record_operators(lambda: layer(values).sum().backward())
    unpacking = [op for op in ops if op.name == "aten::zero_" and op.bytes >= 4 * 64 * 32]
    assert len(unpacking) == 2


def test_8_bit_optimizer_step_changes_no_weights() -> None:
    weight = torch.nn.Parameter(torch.ones(4096))
    weight.grad = torch.ones(4096)
    optimizer = BlockwiseAdamW([weight])
    optimizer.step()
    (op,) = record_operators(optimizer.step)
    assert op.bytes >= 3 * 4 * 4096 and weight.eq(1).all()
