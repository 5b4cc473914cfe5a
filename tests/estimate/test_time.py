"""Seconds from traces made by hand: a host that asks, a device that follows, each phase as often as it runs."""

import dataclasses

import pytest

from shoestring.estimate import update_seconds
from shoestring.estimate.calibration import Calibration
from shoestring.estimate.exchange import LINKS, exchange_seconds
from shoestring.estimate.rates import TABLE
from shoestring.estimate.spread import SCORED, Spread
from shoestring.estimate.time import Seconds
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.hardware.probe import local_cpu
from shoestring.trace.record import Trace
from tests.estimate.handmade_traces import op, update

T4 = DEVICES["t4"]
CALL = TABLE["t4"].call_seconds[1]
VIEW = TABLE["t4"].view_seconds
KERNEL = TABLE["t4"].kernel_seconds
WIDE = TABLE["t4"].bandwidth["elementwise"]


def seconds(trace: Trace, device: Device = T4, microbatches: int = 1, **named: object) -> Seconds:
    found = update_seconds(trace, device, microbatches, **named)  # type: ignore[arg-type]
    assert found
    return found


def test_the_device_works_while_the_host_asks_for_what_comes_next() -> None:
    # The second operator is asked for while the first still runs; the third, in another phase, waits for no one.
    long = op(size=round(WIDE))
    found = seconds(update(forward=long, backward=long, optimizer=op(size=1)))
    assert found.parts == pytest.approx({"forward": 1.0 + CALL, "backward": 1.0, "optimizer": KERNEL}, rel=1e-6)
    assert found.value == sum(found.parts.values())


def test_small_operators_wait_for_the_host() -> None:
    small = dataclasses.replace(op(size=1), calls=3)
    found = seconds(update(forward=small, backward=small, optimizer=small))
    assert found.value == pytest.approx(3 * (CALL + 2 * VIEW) + KERNEL)


def test_captured_microbatches_wait_for_no_host_but_the_optimizer_does() -> None:
    small = dataclasses.replace(op(size=1), calls=3)
    found = seconds(update(forward=small, backward=small, optimizer=small), cuda_graphs=True)
    assert found.parts["forward"] == found.parts["backward"] == pytest.approx(KERNEL)
    assert found.value == pytest.approx(CALL + 2 * VIEW + KERNEL)
    several = seconds(update(forward=small, backward=small, optimizer=small), microbatches=10, cuda_graphs=True)
    assert several.parts["forward"] == pytest.approx(10 * KERNEL)


def test_a_cpu_does_nothing_beside_asking() -> None:
    cpu = local_cpu().device
    assert cpu.bandwidth
    long = op(size=round(cpu.bandwidth))
    found = seconds(update(forward=long, backward=long, optimizer=long), cpu)
    assert found.value == pytest.approx(3.0, rel=1e-3)
    assert seconds(update(forward=op(), backward=op(), optimizer=op()), cpu).value == pytest.approx(3 * 15e-6)


@pytest.mark.parametrize("traced", [1, 2])
def test_the_optimizer_runs_once_whatever_the_number_of_microbatches(traced: int) -> None:
    work = op(size=round(0.1 * WIDE))
    found = seconds(update(forward=work, backward=work, optimizer=work, microbatches=traced), microbatches=10)
    assert found.parts == pytest.approx({"forward": 1.0, "backward": 1.0, "optimizer": 0.1}, rel=0.01)


def test_a_recurrent_layer_waits_for_each_of_its_kernels() -> None:
    found = seconds(update(forward=op(launches=1001), backward=op(), optimizer=op()))
    assert found.parts["forward"] == pytest.approx(CALL + 1001 * KERNEL)


def test_gradients_are_exchanged_beside_backward_and_the_last_of_them_after_it() -> None:
    long = op(size=round(WIDE))
    trace = update(forward=long, backward=long, optimizer=op())
    gradients = 4 * 500_000_000
    trace = dataclasses.replace(trace, facts=dataclasses.replace(trace.facts, parameters_trainable=500_000_000))
    alone, two = seconds(trace), seconds(trace, gpus=2)
    assert "exchange" not in alone.parts and alone.value < two.value
    # Half a second of sending, hidden in a second of backward but for the last bucket; and copies into buckets.
    copies = 4 * gradients / WIDE
    assert two.parts["exchange"] == pytest.approx(copies + exchange_seconds(25 * 2**20, 2))
    four = seconds(trace, gpus=4, link=dataclasses.replace(LINKS[0], bandwidth=1e9))
    assert four.parts["exchange"] == pytest.approx(copies + LINKS[0].latency + 1.5 * gradients / 1e9 - 1.0, rel=1e-3)


def test_unknown_rates_give_no_time() -> None:
    steps = update(forward=op(), backward=op(), optimizer=op())
    assert update_seconds(steps, dataclasses.replace(T4, bandwidth=None), 1) is None
    assert update_seconds(steps, dataclasses.replace(T4, fp32_flops=None), 1) is None


@pytest.mark.parametrize("device", [*DEVICES.values(), local_cpu().device], ids=lambda device: device.name)
def test_the_range_contains_the_value_and_has_a_source(device: Device) -> None:
    found = seconds(update(forward=op(flops=10**12), backward=op(size=10**9), optimizer=op()), device, 3)
    assert found.low < found.value < found.high
    assert found.source


def test_the_range_is_what_scoring_shows_without_what_the_rows_own_source_does() -> None:
    trace = update(forward=op(size=round(WIDE)), backward=op(), optimizer=op())
    every = seconds(trace)
    low, high = zip(*SCORED["t4"].values(), strict=True)
    assert (every.low, every.high) == pytest.approx((min(low) * every.value, max(high) * every.value), rel=1e-3)
    widest = max(SCORED["t4"], key=lambda name: SCORED["t4"][name][1])
    without = seconds(trace, without=widest)
    assert without.value == every.value and without.high < every.high
    assert widest in every.source and widest not in without.source


def test_no_rate_is_from_a_source_whose_rows_are_scored() -> None:
    for device, sources in SCORED.items():
        known = TABLE.get(device)
        assert known is None or not any(name in known.source for name in sources)


def test_an_exchange_is_not_predicted_from_the_link_that_it_measured() -> None:
    trace = update(forward=op(), backward=op(), optimizer=op())
    trace = dataclasses.replace(trace, facts=dataclasses.replace(trace.facts, parameters_trainable=10**9))
    own = seconds(trace, gpus=2, without="Shakhtar-Sankur/tandem")
    assert own.parts["exchange"] != seconds(trace, gpus=2).parts["exchange"]


def test_what_a_run_measured_takes_the_place_of_the_table() -> None:
    trace = update(forward=op(size=round(WIDE)), backward=op(), optimizer=op())
    spread = Spread(low=0.98, high=1.03, source="200 updates measured in run")
    measured = Calibration(device=T4.title, factor=1.5, spread=spread, input_seconds=0.0, save_rate=None)
    plain, found = seconds(trace), seconds(trace, calibration=measured)
    assert found.value == pytest.approx(1.5 * plain.value) and found.calibration == 1.5
    assert (found.low, found.high) == pytest.approx((0.98 * found.value, 1.03 * found.value))
    assert found.source == "200 updates measured in run"
    other = dataclasses.replace(measured, device="NVIDIA L4")
    assert seconds(trace, calibration=other) == plain
