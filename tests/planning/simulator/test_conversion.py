"""Recorded operators become those of a trace: the same ones that tracing has for the same call of torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.planning.simulator import conversion
from shoestring.planning.simulator.recorded import read_operators
from shoestring.planning.trace.record import Op
from shoestring.planning.trace.recorder import Recorder, real
from tests.planning.simulator.records import Writer, tensor

ONE, NONE = {"ints": [1, 1]}, {"ints": [0, 0]}


def converted(
    folder: Path, name: str, arguments: dict[str, Any], results: list[Any], written: tuple[int, ...] = ()
) -> Op:
    writer = Writer()
    writer.signature(writer.operator(name, list(arguments), written), list(arguments.values()), results)
    recorded = read_operators(writer.write(folder))
    assert recorded is not None
    return conversion.operator(recorded.signatures[0])


def traced(run: Callable[[], Any]) -> list[Op]:
    with Recorder(watched=real) as recorder:
        run()
    return [event for event in recorder.log.record()[1] if isinstance(event, Op)]


def alone(op: Op) -> Op:
    """Return the operator without what the host did before it."""
    return Op(op.name, op.flops, op.bytes, op.precision, op.launches, 0, op.shape)


def test_product(tmp_path: Path) -> None:
    op = converted(
        tmp_path,
        "aten::addmm",
        {"self": tensor(6), "mat1": tensor(4, 5), "mat2": tensor(5, 6), "beta": None, "alpha": None},
        [tensor(4, 6)],
    )
    layer = nn.Linear(5, 6)
    with torch.no_grad():
        expected = traced(lambda: layer(torch.zeros(4, 5)))[-1]
    assert op == alone(expected)
    assert (op.flops, op.shape) == (2 * 4 * 5 * 6, (1, 4, 6, 5))


def test_product_in_half_precision_and_into_an_argument(tmp_path: Path) -> None:
    half = [tensor(*sizes, kind="Half") for sizes in ((2, 4, 5), (2, 5, 6), (2, 4, 6))]
    op = converted(
        tmp_path, "aten::bmm.out", dict(zip(("self", "mat2", "out"), half, strict=True)), [half[2]], written=(2,)
    )
    assert (op.precision, op.shape, op.flops) == ("fp16", (2, 4, 6, 5), 2 * 2 * 4 * 6 * 5)


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolution_of_cudnn(tmp_path: Path, *, channels_last: bool) -> None:
    strides = [[4 * 64, 1, 8 * 4, 4]] if channels_last else []
    op = converted(
        tmp_path,
        "aten::cudnn_convolution",
        {
            "self": ["Float", [2, 4, 8, 8], *strides],
            "weight": tensor(6, 4, 3, 3),
            "padding": ONE,
            "stride": ONE,
            "dilation": ONE,
            "groups": 1,
            "benchmark": False,
        },
        [tensor(2, 6, 8, 8)],
    )
    layer = nn.Conv2d(4, 6, 3, padding=1, bias=False)
    images = torch.zeros(2, 4, 8, 8)
    if channels_last:
        images = images.to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = traced(lambda: layer(images))[-1]
    assert op == alone(expected)
    assert op.shape[-1] == channels_last


def test_depthwise_convolution(tmp_path: Path) -> None:
    op = converted(
        tmp_path,
        "aten::_conv_depthwise2d",
        {
            "self": tensor(2, 4, 8, 8),
            "weight": tensor(4, 1, 3, 3),
            "kernel_size": {"ints": [3, 3]},
            "bias": None,
            "stride": ONE,
            "padding": ONE,
            "dilation": ONE,
        },
        [tensor(2, 4, 8, 8)],
    )
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
    with torch.no_grad():
        expected = traced(lambda: layer(torch.zeros(2, 4, 8, 8)))[-1]
    assert op == alone(expected)


def test_backward_of_a_convolution_has_a_launch_for_each_gradient(tmp_path: Path) -> None:
    op = converted(
        tmp_path,
        "aten::convolution_backward",
        {
            "grad_output": tensor(2, 6, 8, 8),
            "input": tensor(2, 4, 8, 8),
            "weight": tensor(6, 4, 3, 3),
            "bias_sizes": {"ints": [0]},
            "stride": ONE,
            "padding": ONE,
            "dilation": ONE,
            "transposed": False,
            "output_padding": NONE,
            "groups": 1,
            "output_mask": {"bools": [1, 1, 0]},
        },
        [tensor(2, 4, 8, 8), tensor(6, 4, 3, 3), None],
    )
    assert (op.name, op.launches) == ("aten::convolution_backward", 2)
    assert op.flops == 2 * 2 * (2 * 64) * 6 * 36


@pytest.mark.parametrize("name", ["efficient", "flash", "cudnn"])
def test_attention_with_a_causal_mask(tmp_path: Path, name: str) -> None:
    states = tensor(2, 3, 16, 8, kind="Half")
    arguments = {
        **dict.fromkeys(("query", "key", "value"), states),
        "attn_bias": None,
        "compute_log_sumexp": True,
        "dropout_p": None,
        "is_causal": True,
        "scale": None,
    }
    if name == "flash":
        del arguments["attn_bias"], arguments["compute_log_sumexp"]
    op = converted(tmp_path, f"aten::_scaled_dot_product_{name}_attention", arguments, [states, tensor(2, 3, 16)])
    assert op.name.startswith("aten::_scaled_dot_product_")
    assert (op.shape, op.flops) == ((6, 16, 16, 8), 2 * 2 * 6 * 16 * 16 * 8 // 2)


@pytest.mark.parametrize(
    ("overload", "arguments", "moved"),
    [
        ("copy_", {"self": tensor(100), "src": tensor(100, kind="Half")}, 400 + 200),
        ("copy_", {"self": tensor(100), "src": ["Float", [100], None, "cpu"]}, 400),
        ("zero_", {"self": tensor(100)}, 400),
        ("add_.Tensor", {"self": tensor(100), "other": tensor(100)}, 3 * 400),
    ],
)
def test_bytes_of_operators_that_write_to_an_argument(
    tmp_path: Path, overload: str, arguments: dict[str, Any], moved: int
) -> None:
    writer = Writer()
    operator = writer.operator(f"aten::{overload}", list(arguments), written=[0], aliases=[0])
    writer.signature(operator, list(arguments.values()), [arguments["self"]])
    recorded = read_operators(writer.write(tmp_path))
    assert recorded is not None
    assert conversion.operator(recorded.signatures[0]).bytes == moved


def test_lookup_reads_as_much_as_it_returns(tmp_path: Path) -> None:
    op = converted(
        tmp_path,
        "aten::index_select",
        {"self": tensor(50_000, 8), "dim": None, "index": tensor(10, kind="Long")},
        [tensor(10, 8)],
    )
    assert op.bytes == 2 * 10 * 8 * 4


def test_list_counts_with_the_tensors_that_are_left_out(tmp_path: Path) -> None:
    weights = {"list": [[tensor(10), 5]], "tensors": 9, "bytes": 1000}
    op = converted(tmp_path, "aten::_foreach_mul_.Scalar", {"self": weights, "scalar": None}, [], written=(0,))
    assert op.bytes == 2 * (5 * 40 + 1000)


def test_operator_that_this_torch_lacks_counts_by_its_bytes(tmp_path: Path) -> None:
    arguments = {"self": tensor(100, kind="BFloat16")}
    for name in ("aten::no_such_operator", "nowhere::mm", "aten::convolution_backward"):
        op = converted(tmp_path, name, arguments, [tensor(100, kind="BFloat16")])
        assert op == Op(name, 0, 400, "bf16", calls=0)


@pytest.mark.parametrize("biases", ["vectors", "matrices"])
def test_recurrent_layer_has_a_product_and_a_kernel_for_each_step(tmp_path: Path, biases: str) -> None:
    # Autocast has matrices of one column as biases.
    bias = tensor(4 * 16) if biases == "vectors" else tensor(4 * 16, 1)
    arguments = {
        "input": tensor(3, 7, 8),
        "weight": {"list": [[tensor(64, 8), 1], [tensor(64, 16), 1], [bias, 2]]},
        "weight_stride0": 4,
        "batch_first": True,
        "batch_sizes": None,
    }
    op = converted(tmp_path, "aten::_cudnn_rnn", arguments, [tensor(3, 7, 16)])
    assert (op.name, op.launches) == ("shoestring::recurrent", 7 * 2)
    assert op.flops == 2 * 3 * 7 * (64 * 8 + 64 * 16)
    backward = converted(tmp_path, "aten::_cudnn_rnn_backward", arguments, [tensor(3, 7, 8)])
    assert (backward.name, backward.flops) == ("shoestring::recurrent_backward", 2 * op.flops)


def test_norm_is_that_of_a_trace(tmp_path: Path) -> None:
    def run() -> Tensor:
        return functional.layer_norm(torch.zeros(4, 8), (8,), torch.ones(8), torch.ones(8))

    arguments = {"input": tensor(4, 8), "normalized_shape": None, "weight": tensor(8), "bias": tensor(8), "eps": None}
    op = converted(tmp_path, "aten::native_layer_norm", arguments, [tensor(4, 8), tensor(4, 1), tensor(4, 1)])
    assert op == alone(traced(run)[-1])
