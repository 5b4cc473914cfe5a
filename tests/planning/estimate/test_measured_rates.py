"""Estimates from measured rates: of a GPU as rates by size, of a CPU operator by operator."""

import dataclasses

import pytest

from shoestring.hardware.catalog import DEVICES, Device
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.estimate.cpu_kernels import cpu_kernels
from shoestring.planning.estimate.kernels import kernel_seconds, padded_flops
from shoestring.planning.estimate.measured_rates import rates_of
from shoestring.planning.estimate.rates import MEASURED_RATES, find_rates
from shoestring.planning.estimate.spread import Spread, spread
from shoestring.planning.estimate.time import Seconds, update_seconds
from shoestring.planning.trace.record import Op, Trace
from tests.hardware.measured_files import CPU, GPU, operator
from tests.planning.estimate.example_traces import op, update

T4 = DEVICES["t4"]
MEASURED_T4 = dataclasses.replace(T4, measured=GPU)
MEASURED_CPU = dataclasses.replace(
    T4, name="cpu", title="A CPU", kind="cpu", compute_capability=None, fp32_flops=None, measured=CPU
)


def seconds(trace: Trace, device: Device, **options: object) -> Seconds:
    estimate = update_seconds(trace, device, 1, **options)  # type: ignore[arg-type]
    assert estimate
    return estimate


def test_device_without_a_file_has_the_rates_of_the_catalogue() -> None:
    assert rates_of(T4) is find_rates(T4)


def test_gpu_has_its_measured_rates() -> None:
    rates = rates_of(MEASURED_T4)
    assert rates and rates.queued and rates.source == GPU.source
    # Padded to tiles, so a bit more than the plain rates.
    assert [rate for _, rate in rates.products] == pytest.approx([1e12, 4e12], rel=0.2)
    assert rates.half["fp16"] == pytest.approx(20e12, rel=0.02) and rates.half["bf16"] == rates.products[-1][1]
    assert rates.half_attention == pytest.approx(5e12 / rates.half["fp16"])
    assert rates.bandwidth == pytest.approx({"elementwise": 200e9, "softmax": 150e9, "norm": 100e9})
    assert (rates.kernel_seconds, rates.view_seconds, rates.call_seconds) == (3e-6, 2e-6, (20e-6,) * 3)
    assert rates.call_shares == {"backward": 0.5, "optimizer": 0.25}


def test_gpu_has_the_measured_rate_of_its_tensor_cores() -> None:
    flops = 2 * 10**5 * 256 * 2304
    rows = [
        operator("aten::convolution", flops / rate, shape=(1, 10**5, 256, 2304, 3, 3, 56, 56, 1, 1, last),
                 flops=flops, precision="fp16", layout=layout)
        for last, layout, rate in ((1, "channels_last", 10e12), (0, "channels_first", 5e12))
    ]  # fmt: skip
    without, rates = (
        rates_of(MEASURED_T4),
        rates_of(dataclasses.replace(T4, measured=dataclasses.replace(GPU, operators=(*GPU.operators, *rows)))),
    )
    assert without and without.tensor_cores == MEASURED_RATES["t4"].tensor_cores
    assert rates and rates.tensor_cores and rates.tensor_cores.share == pytest.approx(10e12 / rates.half["fp16"])


def test_measured_product_of_a_gpu_takes_as_long_as_measured() -> None:
    rates = rates_of(MEASURED_T4)
    assert rates
    product = Op("aten::mm", 2 * 4096**3, 12 * 4096**2, "fp32", shape=(1, 4096, 4096, 4096))
    assert kernel_seconds(product, rates) == pytest.approx(2 * 4096**3 / 4e12, rel=0.01)
    assert padded_flops(product.shape) > product.flops


def test_larger_products_are_never_slower_in_rate() -> None:
    slow = operator("aten::mm", 1.0, shape=(1, 8192, 8192, 8192), flops=2 * 8192**3)
    rates = rates_of(dataclasses.replace(T4, measured=dataclasses.replace(GPU, operators=(*GPU.operators, slow))))
    assert rates
    curve = [rate for _, rate in rates.products]
    assert curve == sorted(curve) and len(curve) == 3


@pytest.mark.parametrize("measured", CPU.operators, ids=lambda timing: timing.operator)
def test_measured_operator_of_a_cpu_takes_as_long_as_measured_without_its_call(measured) -> None:
    own = Op(measured.operator, measured.flops, measured.bytes, "fp32", measured.launches, 1, measured.shape)
    assert cpu_kernels(CPU)(own) == pytest.approx(measured.seconds - CPU.host["call"].seconds)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (op(size=10**8, name="aten::add.Tensor"), 10e-3),  # beyond the last size in proportion
        (op(size=10**6, name="aten::add.Tensor"), 1e-4),  # between two
        (op(size=10**4, name="aten::add.Tensor"), 1e-6),  # below the first
        (op(size=10**7, name="aten::sub.Tensor"), 1e-3),  # not measured: as an addition
        (op(size=10**7, name="aten::sub_.Tensor"), 5e-4),  # in place
        (op(size=10**7, name="aten::tanh_backward"), 8e-3),  # the measured operator whose name is in its own
        (op(size=10**7, name="aten::_foreach_tanh_"), 8e-3),
        (op(size=10**7, name="aten::native_group_norm"), 1.998e-3),
        (op(flops=2 * 10**7, launches=20, name="shoestring::recurrent"), 2 * 998e-6),
        (op(flops=10**6, launches=10, name="shoestring::recurrent"), 998e-7),
    ],
    ids=lambda value: value.name if isinstance(value, Op) else "",
)
def test_other_operators_follow_those_that_are_like_them(operation: Op, expected: float) -> None:
    assert cpu_kernels(CPU)(operation) == pytest.approx(expected, rel=1e-3)


def test_product_of_another_shape_is_between_its_neighbours() -> None:
    kernels = cpu_kernels(CPU)
    rates = {side: 2 * side**3 / kernels(_product(side)) for side in (16, 64, 128, 256, 512, 1024, 4096)}
    assert list(rates.values()) == sorted(rates.values())
    assert rates[64] < rates[256] < rates[1024]
    assert rates[256] == pytest.approx((rates[64] * rates[1024]) ** 0.5)  # as far from the one as from the other
    assert kernels(dataclasses.replace(_product(256), shape=())) == pytest.approx(kernels(_product(256)))


def _product(side: int) -> Op:
    return Op("aten::addmm", 2 * side**3, 12 * side**2, "fp32", shape=(1, side, side, side))


def test_update_on_a_cpu_adds_the_host_to_each_operator() -> None:
    add = op(size=10**7, name="aten::add.Tensor")
    estimate = seconds(update(forward=add, backward=add, optimizer=add), MEASURED_CPU)
    expected = {"forward": 1e-3 + 10e-6, "backward": 1e-3 + 8e-6, "optimizer": 1e-3 + 4e-6}
    assert estimate.parts == pytest.approx(expected)


def test_range_of_a_gpu_is_that_of_predictions_from_kernels_times_the_noise() -> None:
    add = op(size=10**8, name="aten::add.Tensor")
    estimate = seconds(update(forward=add, backward=add, optimizer=add), MEASURED_T4)
    of_t4 = spread(T4)
    expected = (0.9 * of_t4.low * estimate.value, 1.2 * of_t4.high * estimate.value)
    assert (estimate.low, estimate.high) == pytest.approx(expected)
    assert GPU.source in estimate.source and "no update was compared" in estimate.source


def test_range_of_a_cpu_is_that_of_a_device_without_comparisons() -> None:
    add = op(size=10**8, name="aten::add.Tensor")
    estimate = seconds(update(forward=add, backward=add, optimizer=add), MEASURED_CPU)
    assert (estimate.low, estimate.high) == pytest.approx((0.5 * estimate.value, 2.5 * estimate.value))
    assert CPU.source in estimate.source


def test_calibration_with_a_file_replaces_the_rates_of_the_same_device() -> None:
    add = op(size=10**8, name="aten::add.Tensor")
    trace = update(forward=add, backward=add, optimizer=add)
    exact = Spread(low=1.0, high=1.0, source="")
    calibration = Calibration(
        device="NVIDIA T4", factor=1.0, spread=exact, input_seconds=0.0, save_rate=None, rates=GPU
    )
    assert seconds(trace, T4, calibration=calibration) == seconds(trace, MEASURED_T4)
    p100 = DEVICES["p100"]
    assert seconds(trace, p100, calibration=calibration) == seconds(trace, p100)
