"""Workspaces of convolutions, by hand from the sizes of their operands."""

import dataclasses

import pytest

from shoestring.base.settings import Precision
from shoestring.planning.estimate.workspaces import distinct_bytes, transposed_bytes
from shoestring.planning.trace.record import Event, Op, Phase
from tests.planning.estimate.example_traces import op

AMPERE, TURING = (8, 6), (7, 5)

# Four images of 8 channels and 6x6 pixels, 16 kernels of 3x3.
INPUT, WEIGHT, OUTPUT = 4 * 8 * 6 * 6, 16 * 8 * 3 * 3, 4 * 16 * 6 * 6
SHAPE = (1, 4 * 6 * 6, 16, 8 * 3 * 3, 3, 3, 6, 6, 1, 1, 0)


def convolution(
    elements: int, *, backward: bool = False, gradients: int = 1, precision: Precision = "fp32", groups: int = 1
) -> Op:
    """Return a convolution that reads and writes so many elements."""
    name = "aten::convolution_backward" if backward else "aten::convolution"
    size = elements * (4 if precision == "fp32" else 2)
    shape = (groups, *SHAPE[1:2], SHAPE[2] // groups, *SHAPE[3:])
    return dataclasses.replace(op(name=name, size=size, launches=gradients), precision=precision, shape=shape)


FORWARD = convolution(INPUT + WEIGHT + OUTPUT)
BACKWARD = convolution(OUTPUT + 2 * (INPUT + WEIGHT), backward=True, gradients=2)


def test_forward_transposes_input_and_weight() -> None:
    assert transposed_bytes(FORWARD, AMPERE) == 4 * (INPUT + WEIGHT)


def test_backward_transposes_three_operands() -> None:
    assert transposed_bytes(BACKWARD, AMPERE) == 4 * (OUTPUT + INPUT + WEIGHT)
    weight_only = convolution(OUTPUT + INPUT + 2 * WEIGHT, backward=True)
    assert transposed_bytes(weight_only, AMPERE) == weight_only.bytes


@pytest.mark.parametrize(
    ("precision", "capability", "element_bytes"),
    [("fp16", TURING, 2), ("fp16", (6, 0), 0), ("bf16", TURING, 0), ("bf16", AMPERE, 2), ("fp32", TURING, 0)],
)
def test_only_tensor_cores_need_channels_last(
    precision: Precision, capability: tuple[int, int], element_bytes: int
) -> None:
    forward = convolution(INPUT + WEIGHT + OUTPUT, precision=precision)
    assert transposed_bytes(forward, capability) == element_bytes * (INPUT + WEIGHT)


def test_grouped_convolutions_have_none() -> None:
    assert transposed_bytes(convolution(INPUT + WEIGHT + OUTPUT, groups=4), AMPERE) == 0


def test_channels_last_tensors_are_not_transposed() -> None:
    channels_last = dataclasses.replace(FORWARD, shape=(*SHAPE[:-1], 1))
    assert transposed_bytes(channels_last, AMPERE) == 0


def test_transposed_convolution_counts_all_operands() -> None:
    unknown = dataclasses.replace(FORWARD, shape=())
    assert transposed_bytes(unknown, AMPERE) == unknown.bytes


def test_equal_workspaces_count_once() -> None:
    events: list[Event] = [Phase("forward", 0, 0), FORWARD, FORWARD, Phase("backward", 0, 0), BACKWARD]
    assert distinct_bytes(events, AMPERE) == 4 * (INPUT + WEIGHT) + 4 * (OUTPUT + INPUT + WEIGHT)
    assert distinct_bytes(events, TURING) == 0


def test_models_without_convolutions_are_recognized_in_forward() -> None:
    events: list[Event] = [Phase("forward", 0, 0), op(name="aten::mm"), Phase("backward", 0, 0), BACKWARD]
    assert distinct_bytes(events, AMPERE) == 0
    assert distinct_bytes(events[:2], AMPERE) == 0
