"""Seconds from traces made by hand: the longest of arithmetic, bytes and launch, each phase as often as it runs."""

import dataclasses

import pytest

from shoestring.estimate import update_seconds
from shoestring.estimate.time import OPERATOR_SECONDS
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.hardware.probe import local_cpu
from tests.estimate.handmade_traces import op, update

T4 = DEVICES["t4"]
TYPICAL = OPERATOR_SECONDS[1]


def test_an_operator_takes_the_longest_of_arithmetic_bytes_and_launch() -> None:
    found = update_seconds(
        update(forward=op(flops=3 * 10**12, size=1), backward=op(flops=1, size=239 * 10**9), optimizer=op(size=1)),
        T4,
        1,
    )
    assert found
    assert found.parts == pytest.approx({"forward": 1.0, "backward": 1.0, "optimizer": TYPICAL}, rel=1e-6)
    assert found.value == sum(found.parts.values())
    assert found.low == pytest.approx(0.6 * 2 + OPERATOR_SECONDS[0])
    assert found.high == pytest.approx(2.0 * 2 + OPERATOR_SECONDS[2])


@pytest.mark.parametrize("traced", [1, 2])
def test_the_optimizer_runs_once_whatever_the_number_of_microbatches(traced: int) -> None:
    steps = update(forward=op(size=1), backward=op(size=1), optimizer=op(size=1), microbatches=traced)
    found = update_seconds(steps, T4, 10)
    assert found
    assert found.parts == pytest.approx({"forward": 10 * TYPICAL, "backward": 10 * TYPICAL, "optimizer": TYPICAL})


def test_half_precision_runs_at_its_own_rate_only_where_there_are_units_for_it() -> None:
    def forward(precision: str) -> float:
        product = dataclasses.replace(op(flops=9 * 10**12), precision=precision)
        found = update_seconds(update(forward=product, backward=op(), optimizer=op()), T4, 1)
        assert found
        return found.parts["forward"]

    assert forward("fp16") == pytest.approx(1.0)
    assert forward("bf16") == forward("fp32") == pytest.approx(3.0)


def test_a_recurrent_layer_waits_for_each_of_its_kernels() -> None:
    found = update_seconds(update(forward=op(launches=1001), backward=op(), optimizer=op()), T4, 1)
    assert found
    assert found.parts["forward"] == pytest.approx(TYPICAL + 1000 * 5e-6)


def test_unknown_rates_give_no_time() -> None:
    steps = update(forward=op(), backward=op(), optimizer=op())
    assert update_seconds(steps, dataclasses.replace(T4, bandwidth=None), 1) is None
    assert update_seconds(steps, dataclasses.replace(T4, fp32_flops=None), 1) is None


@pytest.mark.parametrize("device", [*DEVICES.values(), local_cpu().device], ids=lambda device: device.name)
def test_the_range_contains_the_value_and_has_a_source(device: Device) -> None:
    steps = update(forward=op(flops=10**12), backward=op(size=10**9), optimizer=op())
    found = update_seconds(steps, device, 3)
    assert found
    assert found.low < found.value < found.high
    assert found.source
