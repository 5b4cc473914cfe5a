"""Seconds of 16-bit convolutions: tiles, transposes, and the choice of kernels that compute in fp32."""

import math
from dataclasses import replace

import pytest

from shoestring.base.settings import Precision
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.kernels import kernel_seconds
from shoestring.planning.estimate.rates import MEASURED_RATES, Rates, find_rates
from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.record import Op

T4 = MEASURED_RATES["t4"]
CORES = T4.tensor_cores
assert CORES


def convolution(
    channels: int = 256,
    columns: int = 256,
    size: int = 3,
    *,
    images: int = 32,
    side: int = 28,
    stride: int = 1,
    channels_last: bool = True,
    launches: int = 0,
    precision: Precision = "fp16",
) -> Op:
    """Return the forward pass, or with launches as many gradients."""
    rows, depth = images * side * side, channels * size * size
    shape = ConvolutionShape(
        1, rows, columns, depth, size, size, side, side, stride, stride, int(channels_last)
    )  # fmt: skip
    name = "aten::convolution_backward" if launches else "aten::convolution"
    count = launches or 1
    element_size = 4 if precision == "fp32" else 2
    moved = element_size * count * (shape.values + rows * columns + columns * depth)
    return Op(name, count * 2 * math.prod(shape.product), moved, precision, count, shape=shape)


def seconds(rates: Rates = T4, **options: object) -> float:
    return kernel_seconds(convolution(**options), rates)  # type: ignore[arg-type]


def test_large_convolution_has_the_rate_of_products() -> None:
    op = convolution(512, 512, images=256)
    assert op.flops / kernel_seconds(op, T4) == pytest.approx(24e12, rel=0.02)


def test_images_channels_first_are_transposed() -> None:
    values = 32 * 28 * 28 * 256
    moved = 2 * 2 * (2 * values + 9 * 256 * 256)
    assert CORES
    transposing = moved / (240e9 * CORES.transpose_share)
    assert seconds(channels_last=False) - seconds() == pytest.approx(transposing)
    assert seconds(channels_last=False, launches=2) - seconds(launches=2) == pytest.approx(2 * transposing)


@pytest.mark.parametrize(("side", "stride", "is_direct"), [(28, 1, True), (7, 1, False), (28, 2, False)])
def test_products_of_aligned_images_need_no_transposing(side: int, stride: int, is_direct: bool) -> None:
    options = {"size": 1, "side": side, "stride": stride, "images": 128}
    assert (seconds(channels_last=False, **options) == seconds(**options)) is is_direct


def test_narrow_weight_gradient_fills_no_tile() -> None:
    # With 64 x 64 channels it takes as long as with 128 x 128, apart from memory traffic.
    wide, narrow = (seconds(channels=count, columns=count, launches=1, images=128) for count in (128, 64))
    assert 0.9 * wide < narrow < wide
    a100 = find_rates(DEVICES["a100-40"])
    assert a100
    wide, narrow = (seconds(a100, channels=count, columns=count, launches=1, images=128) for count in (128, 64))
    assert narrow < 0.5 * wide


def test_first_layer_is_computed_in_fp32_if_that_is_faster() -> None:
    first = {"channels": 3, "columns": 64, "size": 7, "side": 112, "stride": 2, "launches": 1}
    assert seconds(precision="fp32", **first) == pytest.approx(seconds(**first), rel=0.01)
    assert seconds() < 0.5 * seconds(precision="fp32")


def test_gradients_of_strided_kernels_compute_skipped_positions() -> None:
    plain, strided = (
        seconds(size=1, side=14, images=512, channels=1024, stride=stride, launches=2)
        - seconds(size=1, side=14, images=512, channels=1024, stride=stride, launches=1)
        for stride in (1, 2)
    )
    assert strided > 3 * plain


def test_gpu_without_tensor_cores_has_no_transposes() -> None:
    p100 = find_rates(DEVICES["p100"])
    assert p100 and p100.tensor_cores is None
    assert seconds(p100, channels_last=False) == seconds(p100)
    # A T4 has none for bf16.
    assert seconds(precision="bf16", channels_last=False) == seconds(precision="bf16")


def test_scaled_flops_scale_the_seconds() -> None:
    op = convolution(images=256, channels_last=False, launches=2)
    twice = replace(op, flops=2 * op.flops, bytes=2 * op.bytes)
    assert kernel_seconds(twice, T4) == pytest.approx(2 * kernel_seconds(op, T4), rel=0.02)


@pytest.mark.parametrize("device", ["t4", "a100-40"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("launches", [0, 1, 2])
def test_whole_batch_is_never_slower_than_parts(device: str, channels_last: bool, launches: int) -> None:
    rates = find_rates(DEVICES[device])
    assert rates
    for channels, columns, size, side, stride in (
        (3, 64, 7, 112, 2), (64, 64, 3, 56, 1), (64, 256, 1, 56, 1), (512, 512, 3, 7, 1), (1024, 2048, 1, 7, 2),
    ):  # fmt: skip
        times = [
            seconds(
                rates, channels=channels, columns=columns, size=size, side=side, stride=stride, images=images,
                channels_last=channels_last, launches=launches,
            )
            for images in (1, 2, 3, 8, 50)
        ]  # fmt: skip
        assert times == sorted(times)
        assert all(time <= images * times[0] * (1 + 1e-9) for time, images in zip(times, (1, 2, 3, 8, 50), strict=True))
