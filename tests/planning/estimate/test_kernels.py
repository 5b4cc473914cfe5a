"""Seconds of single operators: compute or memory time, at the rate of their kind and size."""

import dataclasses
import itertools
from statistics import median
from typing import get_args

import pytest

from shoestring.base.settings import Precision
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.kernels import (
    OVERHEAD_DEPTH,
    RECURRENT_STEP_SECONDS,
    WEIGHT_PRODUCT,
    fused_flops,
    interpolate_rate,
    kernel_seconds,
    padded_flops,
    tiled_flops,
)
from shoestring.planning.estimate.rates import MEASURED_RATES, Rates, find_rates, scale_curve, sustained_rate
from shoestring.planning.trace.record import Op

T4 = MEASURED_RATES["t4"]


def product(*shape: int, name: str = "aten::mm", precision: Precision = "fp32", size: int = 0) -> Op:
    batch, rows, columns, depth = shape[:4]
    return Op(name, 2 * batch * rows * columns * depth, size, precision, shape=shape)


def rate(op: Op, rates: Rates = T4) -> float:
    return op.flops / kernel_seconds(op, rates)


def test_rate_at_between_and_beyond_curve_points() -> None:
    curve = ((8.0, 1e12), (9.0, 3e12))
    assert interpolate_rate(curve, 1e8) == 1e12 and interpolate_rate(curve, 1e9) == 3e12
    assert interpolate_rate(curve, 10**8.5) == pytest.approx(3**0.5 * 1e12)
    assert interpolate_rate(curve, 1e12) == 3e12
    # Smaller work takes as long as the first point's.
    assert 1e6 / interpolate_rate(curve, 1e6) == pytest.approx(1e8 / 1e12)


def test_large_product_runs_at_its_precisions_rate() -> None:
    large = (1, 8192, 8192, 8192)
    overhead = 8192 / (8192 + OVERHEAD_DEPTH)
    assert rate(product(*large)) == pytest.approx(3.48e12 * overhead)
    assert rate(product(*large, precision="fp16")) == pytest.approx(24e12 * overhead)
    assert rate(product(*large, precision="bf16")) == pytest.approx(3.48e12 * overhead)


def test_shallow_and_narrow_products_are_slower() -> None:
    assert padded_flops((1, 64, 8, 990)) == 2 * 64 * 64 * 1000
    large = rate(product(1, 4096, 4096, 4096))
    assert rate(product(1, 4096, 4096, 32)) < 0.8 * large
    assert rate(product(1, 4096, 8, 4096)) < 0.4 * large


def test_small_product_leaves_tensor_cores_idle() -> None:
    small, large = (product(1, size, size, size, precision="fp16") for size in (256, 4096))
    assert kernel_seconds(small, T4) > T4.kernel_seconds and rate(small) < 0.2 * rate(large)


def test_memory_bandwidth_depends_on_the_kernel() -> None:
    def bandwidth(name: str) -> float:
        return 10**9 / kernel_seconds(Op(name, 0, 10**9, "fp32"), T4)

    assert bandwidth("aten::add.Tensor") == pytest.approx(240e9)
    assert bandwidth("aten::_softmax") == pytest.approx(193e9)
    assert bandwidth("aten::native_layer_norm") == pytest.approx(154e9)
    assert bandwidth("aten::native_layer_norm") == bandwidth("aten::native_batch_norm")
    # It reads its operands twice.
    assert bandwidth("aten::native_batch_norm_backward") == pytest.approx(0.89 * 154e9)
    wide = product(1, 4096, 4096, 1, size=10**9)
    assert kernel_seconds(wide, T4) == pytest.approx(10**9 / 240e9)


def test_nothing_is_faster_than_its_launches() -> None:
    assert kernel_seconds(Op("aten::add", 0, 4, "fp32", launches=7), T4) == pytest.approx(7 * T4.kernel_seconds)


def test_convolution_is_tiled_and_its_weight_gradient_as_fast() -> None:
    shape = (1, 2 * 32 * 32, 256, 256 * 9, 3, 3, 32, 32, 1, 1, 0)
    forward = product(*shape, name="aten::convolution")
    assert tiled_flops(shape) == forward.flops
    assert rate(forward) == pytest.approx(interpolate_rate(T4.convolutions, forward.flops))
    # 30 x 30 is 32 x 32 in tiles of 4, 200 channels are 256.
    assert tiled_flops((1, 2 * 30 * 30, 200, 2304, 3, 3, 30, 30, 1, 1, 0)) == forward.flops
    both = dataclasses.replace(forward, name="aten::convolution_backward", flops=2 * forward.flops, launches=2)
    weights = dataclasses.replace(forward, name="aten::convolution_backward")
    assert kernel_seconds(weights, T4) == kernel_seconds(forward, T4)
    assert kernel_seconds(both, T4) == pytest.approx(kernel_seconds(weights, T4) + kernel_seconds(forward, T4))


def test_autotuned_convolution_has_the_products_of_winograds_algorithm() -> None:
    fastest = dataclasses.replace(T4, autotuned=True)
    shape = (1, 64 * 32 * 32, 256, 256 * 9, 3, 3, 32, 32, 1, 1, 0)
    forward = product(*shape, name="aten::convolution")
    assert fused_flops(shape) == padded_flops((16, 64 * 16 * 16, 256, 256))
    # 31 x 31 positions are 16 x 16 tiles of 2 x 2.
    assert fused_flops((1, 64 * 31 * 31, 256, 2304, 3, 3, 31, 31, 1, 1, 0)) == fused_flops(shape)
    assert kernel_seconds(forward, fastest) == pytest.approx(fused_flops(shape) / 3.48e12)
    # Without it, no convolution is faster, however large it is, and small ones are slower.
    assert kernel_seconds(forward, T4) == kernel_seconds(forward, fastest)
    small = product(1, 32 * 32, 64, 576, 3, 3, 32, 32, 1, 1, 0, name="aten::convolution")
    assert kernel_seconds(small, T4) > 1.5 * kernel_seconds(small, fastest)


def test_weight_gradient_of_a_product_takes_longer_than_the_product() -> None:
    forward = product(1, 65536, 256, 256, 1, 1, 32, 32, 1, 1, 0, name="aten::convolution")
    weights = dataclasses.replace(forward, name="aten::convolution_backward")
    plain = kernel_seconds(product(1, 256, 256, 65536), T4)
    assert kernel_seconds(weights, T4) == pytest.approx(WEIGHT_PRODUCT * plain)


def test_recurrent_layer_waits_for_each_step() -> None:
    # Two products and two kernels for each of 100 steps; half of the work waits for the step before.
    layer = Op("shoestring::recurrent", 2 * 100 * 10**8, 4, "fp32", launches=200)
    step = 10**8 / interpolate_rate(T4.products, 10**8) + RECURRENT_STEP_SECONDS
    together = 10**10 / T4.products[-1][1]
    assert kernel_seconds(layer, T4) == pytest.approx(together + 100 * step)
    backward = dataclasses.replace(layer, name="shoestring::recurrent_backward", flops=2 * layer.flops)
    assert kernel_seconds(backward, T4) == pytest.approx(3 * together + 100 * step)


def test_other_convolutions_are_products_or_memory_bound() -> None:
    pointwise = product(1, 65536, 256, 256, 1, 1, 32, 32, 1, 1, 0, name="aten::convolution")
    assert rate(pointwise) < 3.48e12
    strided = product(1, 65536, 256, 2304, 3, 3, 32, 32, 2, 2, 0, name="aten::convolution")
    assert rate(strided) < 3.48e12
    for precision in get_args(Precision):
        depthwise = product(
            512, 65536, 1, 9, 3, 3, 32, 32, 1, 1, 0, name="aten::convolution", size=10**8, precision=precision
        )
        assert kernel_seconds(depthwise, T4) == pytest.approx(10**8 / 240e9)
    volumes = product(1, 65536, 256, 27 * 256, name="aten::convolution", precision="fp16")
    assert rate(volumes) == pytest.approx(24e12, rel=0.02)


def test_weight_gradient_of_few_channels_is_slow() -> None:
    gradients = [
        product(1, 65536, 64, channels * 25, 5, 5, 32, 32, 1, 1, 0, name="aten::convolution_backward")
        for channels in (3, 8)
    ]
    assert rate(gradients[0]) < 0.65 * rate(gradients[1])


def test_attention_is_slower_than_products() -> None:
    name = "aten::_scaled_dot_product_efficient_attention"
    narrow, wide = (product(64, 2048, 2048, width, name=name) for width in (64, 256))
    assert rate(narrow) < rate(wide) < 3.48e12
    half = dataclasses.replace(narrow, precision="fp16")
    assert rate(half) == pytest.approx(24e12 * 0.66 / 2.19)


def test_scaled_flops_scale_the_seconds() -> None:
    once = product(1, 8192, 4096, 4096)
    twice = dataclasses.replace(once, flops=2 * once.flops)
    assert kernel_seconds(twice, T4) == pytest.approx(2 * kernel_seconds(once, T4), rel=0.01)


@pytest.mark.parametrize("device", ["t4", "p100", "v100", "a100-40"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["aten::mm", "aten::_scaled_dot_product_efficient_attention", "aten::convolution"])
def test_whole_batch_is_never_slower_than_parts(device: str, precision: Precision, name: str) -> None:
    rates = find_rates(DEVICES[device])
    assert rates

    def seconds(samples: int, rows: int, columns: int, depth: int) -> float:
        if name == "aten::convolution":
            shape = (1, samples * rows, columns, depth * 9, 3, 3, rows // 32, 32, 1, 1, 0)
        elif name == "aten::mm":
            shape = (1, samples * rows, columns, depth)
        else:
            shape = (samples * 8, rows, columns, depth)
        return kernel_seconds(product(*shape, name=name, precision=precision), rates)

    for rows, columns, depth in itertools.product((32, 480, 2048), (48, 1024, 5000), (48, 768)):
        sample_seconds = seconds(1, rows, columns, depth)
        times = [seconds(samples, rows, columns, depth) for samples in (1, 2, 3, 8, 50, 400)]
        assert all(smaller <= larger * (1 + 1e-9) for smaller, larger in itertools.pairwise(times))
        for samples, batch_seconds in zip((1, 2, 3, 8, 50, 400), times, strict=True):
            assert batch_seconds <= samples * sample_seconds * (1 + 1e-9)


def test_untimed_gpu_has_scaled_curves() -> None:
    curve = scale_curve(((8.0, 1e12), (9.0, 2e12)), 20e12)
    assert [size for size, _ in curve] == pytest.approx([9.0, 10.0])
    assert [value for _, value in curve] == pytest.approx([10e12, 20e12])
    a100, card = find_rates(DEVICES["a100-40"]), find_rates(DEVICES["rtx3090"])
    assert a100 and card and (a100.basis, card.basis) == ("timed", "published")
    # Products that take equally long have equal shares of the GPUs' rates.
    ratio = card.products[-1][1] / a100.products[-1][1]
    small = interpolate_rate(a100.products, 1e8)
    assert interpolate_rate(card.products, 1e8 * ratio) == pytest.approx(small * ratio)
    large = product(1, 8192, 8192, 8192, precision="bf16")
    published = DEVICES["rtx3090"].sustained["bf16_flops"]
    assert card.half["bf16"] == published
    assert 0.9 * published < rate(large, card) < published


def test_every_gpu_has_rates_that_do_not_exceed_its_data_sheet_by_far() -> None:
    for device in DEVICES.values():
        rates = find_rates(device)
        assert rates and device.bandwidth and device.fp32_flops
        assert 0.25 * device.fp32_flops < rates.products[-1][1] < 1.3 * device.fp32_flops, device.name
        assert 0.6 * device.bandwidth < rates.bandwidth["elementwise"] < device.bandwidth, device.name


def test_gpus_without_published_rates_have_the_shares_of_similar_ones() -> None:
    device = DEVICES["rtx3060"]
    assert "fp16_flops" not in device.sustained and device.fp16_flops
    similar = [
        other.sustained["fp16_flops"] / other.fp16_flops
        for other in DEVICES.values()
        if other.fp16_flops and "fp16_flops" in other.sustained
        if other.compute_capability == (8, 6) and "GeForce" in other.title and "laptop" not in other.name
    ]
    assert sustained_rate(device, "fp16_flops") == pytest.approx(device.fp16_flops * median(similar))
    rates = find_rates(device)
    assert rates and rates.basis == "similar" and "similar GPUs" in rates.source
    # A card without a power cable has the share of other such cards, not that of larger ones with the same chip.
    small, large = (sustained_rate(DEVICES[name], "fp16_flops") for name in ("l4", "rtx6000ada"))
    assert small and large and small / 121e12 < 0.7 < large / 364e12


def test_tf32_is_used_for_convolutions_and_if_allowed_for_products() -> None:
    rates = find_rates(DEVICES["a100-40"])
    assert rates and rates.tf32
    allowed = dataclasses.replace(rates, tf32_products=True)
    multiply = product(1, 8192, 8192, 8192)
    assert rate(multiply, rates) < 16.3e12 and rate(multiply, allowed) > 0.9 * rates.tf32
    attention = dataclasses.replace(multiply, name="aten::_scaled_dot_product_efficient_attention")
    assert rate(attention, rates) == rate(attention, allowed)
    convolution = product(1, 256 * 28 * 28, 256, 1024, 1, 1, 28, 28, 1, 1, 1, name="aten::convolution")
    fp32_only = dataclasses.replace(rates, tf32=None)
    assert rate(convolution, rates) == rate(convolution, allowed) > 2 * rate(convolution, fp32_only)
    # A T4 has no TF32.
    assert rate(multiply, dataclasses.replace(T4, tf32_products=True)) == rate(multiply, T4)


def test_volta_is_faster_in_16_bits_and_pascal_is_not() -> None:
    large = (1, 8192, 8192, 8192)
    overhead = 8192 / (8192 + OVERHEAD_DEPTH)
    pascal, volta = MEASURED_RATES["p100"], MEASURED_RATES["v100"]
    assert rate(product(*large), pascal) == pytest.approx(6.51e12 * overhead)
    assert rate(product(*large, precision="fp16"), pascal) == rate(product(*large), pascal)
    assert rate(product(*large), volta) == pytest.approx(13.2e12 * overhead)
    assert rate(product(*large, precision="fp16"), volta) == pytest.approx(95e12 * overhead)
