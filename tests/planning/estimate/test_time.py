"""Seconds of handmade traces: the host queues operators, the device runs them, and phases repeat per microbatch."""

import dataclasses
import math

import pytest

from shoestring.hardware.catalog import DEVICES, Device
from shoestring.hardware.probe import local_cpu
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.estimate.exchange import LINKS, exchange_seconds, link_of
from shoestring.planning.estimate.rates import MEASURED_RATES, find_rates
from shoestring.planning.estimate.spread import SCORED, Spread, spread
from shoestring.planning.estimate.time import Seconds, update_seconds
from shoestring.planning.trace.record import Alloc, Event, Op, Phase, Trace
from tests.planning.estimate.example_traces import op, trace, update

T4 = DEVICES["t4"]
CALL = MEASURED_RATES["t4"].call_seconds[1]
VIEW = MEASURED_RATES["t4"].view_seconds
KERNEL = MEASURED_RATES["t4"].kernel_seconds
WIDE = MEASURED_RATES["t4"].bandwidth["elementwise"]


def seconds(trace: Trace, device: Device = T4, microbatches: int = 1, **options: object) -> Seconds:
    estimate = update_seconds(trace, device, microbatches, **options)  # type: ignore[arg-type]
    assert estimate
    return estimate


def test_device_runs_while_the_host_queues_operators() -> None:
    # The second operator is queued while the first still runs; the third, in another phase, does not wait.
    long = op(size=round(WIDE))
    estimate = seconds(update(forward=long, backward=long, optimizer=op(size=1)))
    assert estimate.parts == pytest.approx({"forward": 1.0 + CALL, "backward": 1.0, "optimizer": KERNEL}, rel=1e-6)
    assert estimate.value == sum(estimate.parts.values())


def test_only_forward_and_backward_have_a_share_of_the_work() -> None:
    def trace(size: int) -> Trace:
        return update(forward=op(flops=100 * size), backward=op(flops=200 * size), optimizer=op(size=round(WIDE)))

    assert seconds(trace(10**10), work=2.5).parts == seconds(trace(10**10 * 5 // 2)).parts


def test_no_operators_take_no_time() -> None:
    steps = update(forward=op(), backward=op(), optimizer=op())
    estimate = seconds(
        dataclasses.replace(steps, events=tuple(event for event in steps.events if not isinstance(event, Op)))
    )
    assert (estimate.low, estimate.value, estimate.high) == (0.0, 0.0, 0.0)


def test_stages_have_equal_shares() -> None:
    trace = update(forward=op(), backward=op(), optimizer=op())
    both = seconds(dataclasses.replace(trace, stages=2))
    assert both.parts == {name: part / 2 for name, part in seconds(trace).parts.items()}


def test_small_operators_wait_for_the_host() -> None:
    small = dataclasses.replace(op(size=1), calls=3)
    estimate = seconds(update(forward=small, backward=small, optimizer=small))
    assert estimate.value == pytest.approx(3 * (CALL + 2 * VIEW) + KERNEL)


def test_host_runs_python_and_the_code_of_each_kind_of_operator() -> None:
    rates = MEASURED_RATES["t4"]
    small = dataclasses.replace(op(size=1), python_calls=10)
    python = 10 * rates.python_seconds[1]
    estimate = seconds(update(forward=small, backward=op(size=1), optimizer=op(size=1)))
    assert estimate.value == pytest.approx(3 * CALL + python + KERNEL)
    for kind, name in (
        ("product", "aten::mm"),
        ("convolution", "aten::convolution"),
        ("norm", "aten::native_layer_norm"),
    ):
        operator = dataclasses.replace(op(size=1), name=name, shape=(1, 1, 1, 1) if kind != "norm" else ())
        factor = rates.call_factors[kind]  # type: ignore[index]
        estimate = seconds(update(forward=operator, backward=op(size=1), optimizer=op(size=1)))
        assert factor > 1 and estimate.value == pytest.approx((2 + factor) * CALL + KERNEL)


def test_cuda_graphs_wait_only_for_the_optimizers_host() -> None:
    small = dataclasses.replace(op(size=1), calls=3)
    estimate = seconds(update(forward=small, backward=small, optimizer=small), cuda_graphs=True)
    assert estimate.parts["forward"] == estimate.parts["backward"] == pytest.approx(KERNEL)
    assert estimate.value == pytest.approx(CALL + 2 * VIEW + KERNEL)
    several = seconds(update(forward=small, backward=small, optimizer=small), microbatches=10, cuda_graphs=True)
    assert several.parts["forward"] == pytest.approx(10 * KERNEL)


def test_cudnn_benchmark_finds_faster_convolutions() -> None:
    convolution = Op(
        "aten::convolution", 2 * 1024 * 64 * 576, 4, "fp32", shape=(1, 1024, 64, 576, 3, 3, 32, 32, 1, 1, 0)
    )
    trace = update(forward=convolution, backward=op(), optimizer=op())
    assert seconds(trace, cudnn_benchmark=True).parts["forward"] < seconds(trace).parts["forward"]


def test_cpu_does_not_overlap_host_and_device() -> None:
    cpu = local_cpu().device
    assert cpu.bandwidth
    long = op(size=round(cpu.bandwidth))
    estimate = seconds(update(forward=long, backward=long, optimizer=long), cpu)
    assert estimate.value == pytest.approx(3.0, rel=1e-3)
    assert seconds(update(forward=op(), backward=op(), optimizer=op()), cpu).value == pytest.approx(3 * 15e-6)


@pytest.mark.parametrize("traced", [1, 2])
def test_optimizer_runs_once_for_any_microbatches(traced: int) -> None:
    work = op(size=round(0.1 * WIDE))
    estimate = seconds(update(forward=work, backward=work, optimizer=work, microbatches=traced), microbatches=10)
    assert estimate.parts == pytest.approx({"forward": 1.0, "backward": 1.0, "optimizer": 0.1}, rel=0.01)


def test_recurrent_layer_waits_for_each_kernel() -> None:
    estimate = seconds(update(forward=op(launches=1001), backward=op(), optimizer=op()))
    assert estimate.parts["forward"] == pytest.approx(CALL + 1001 * KERNEL)


def test_library_exchanges_only_the_last_bucket_after_backward() -> None:
    long = op(size=round(WIDE))
    trace = update(forward=long, backward=long, optimizer=op())
    gradients = 4 * 500_000_000
    trace = dataclasses.replace(trace, facts=dataclasses.replace(trace.facts, parameters_trainable=500_000_000))
    single, two = seconds(trace), seconds(trace, gpus=2, torch_ddp=True)
    assert "exchange" not in single.parts and single.value < two.value
    # A second of backward overlaps half a second of exchange except the last bucket; copies into buckets are added.
    copies = 4 * gradients / WIDE
    assert two.parts["exchange"] == pytest.approx(copies + exchange_seconds(25 * 2**20, 2))
    slow = dataclasses.replace(LINKS[0], bandwidth=1e9)
    four = seconds(trace, gpus=4, link=slow, torch_ddp=True)
    assert four.parts["exchange"] == pytest.approx(copies + LINKS[0].latency + 1.5 * gradients / 1e9 - 1.0, rel=1e-3)


def test_engine_exchanges_after_all_microbatches() -> None:
    long = op(size=round(WIDE))
    trace = update(forward=long, backward=long, optimizer=op(), microbatches=2)
    facts = dataclasses.replace(trace.facts, parameters_trainable=500_000_000, weight_bytes=2 * 10**9)
    trace = dataclasses.replace(trace, facts=facts)
    link = dataclasses.replace(LINKS[0], bandwidth=1e9, latency=0.0, hides_gathers=True)
    exchange = {
        (gpus, sharding): seconds(trace, microbatches=3, gpus=gpus, sharding=sharding, link=link).parts["exchange"]
        for gpus in (2, 4)
        for sharding in ("ddp", "zero1", "zero2", "zero3")
    }
    # Two gigabytes, once for each level of the tree, and once more to send the weights.
    assert [exchange[2, "ddp"], exchange[4, "ddp"]] == pytest.approx([2.0, 4.0])
    assert exchange[2, "zero1"] == pytest.approx(4.0)
    # Half of them or more in each collective of a microbatch, whose computation takes two seconds.
    copies = 3 * 4 * 2 * 10**9 / WIDE
    assert exchange[4, "zero2"] == pytest.approx(3 * (3.0 - 2.0) + copies, rel=0.01)
    assert exchange[4, "zero3"] == pytest.approx(3 * (4.5 - 2.0) + copies, rel=0.01)


def test_engine_exchanges_gradients_from_the_last_backward_on() -> None:
    second = op(size=round(WIDE))
    size = 2 * 10**9
    events: list[Event] = []
    for number in range(2):
        backward = [second, Alloc(0), second, Alloc(1), second] if number == 0 else [second, second, second]
        events += [Phase("forward", 1, number), second, Phase("backward", 1, number), *backward]
    events += [Phase("optimizer", 1, 0), op(), Phase("end", 1, 0)]
    steps = trace([(size // 2, "gradients"), (size // 2, "gradients")], events, 2)
    steps = dataclasses.replace(steps, facts=dataclasses.replace(steps.facts, parameters_trainable=size // 4))
    link = dataclasses.replace(LINKS[0], bandwidth=1e9, latency=0.0)
    exchange = {
        options: seconds(steps, microbatches=3, gpus=2, link=link, **dict(options)).parts["exchange"]
        for options in ((), (("by_library", True),), (("cuda_graphs", True),), (("sharding", "zero1"),))
    }
    # The first gradient is computed a second before the end, which it takes to send it.
    assert [*exchange.values()] == pytest.approx([1.0, 2.0, 2.0, 3.0], rel=1e-3)


def test_high_end_has_the_exchange_after_the_computation() -> None:
    long = op(size=round(WIDE))
    steps = update(forward=long, backward=long, optimizer=op())
    facts = dataclasses.replace(steps.facts, parameters_trainable=10**6, weight_bytes=8 * 10**9)
    steps = dataclasses.replace(steps, facts=facts)
    link = dataclasses.replace(LINKS[0], bandwidth=4e9, latency=0.0, hides_gathers=True)
    # FSDP gathers the weights in two seconds, while two seconds are computed.
    hidden = seconds(steps, gpus=2, sharding="zero3", link=link)
    shown = seconds(steps, gpus=2, sharding="zero3", link=dataclasses.replace(link, hides_gathers=False))
    slow = seconds(steps, gpus=2, sharding="zero3", link=dataclasses.replace(link, slowest=0.5))
    assert hidden.parts["exchange"] == pytest.approx(0.0, abs=0.03)
    assert shown.parts["exchange"] == pytest.approx(2.0, abs=0.03)
    limits = spread(T4)
    for estimate, longest in ((hidden, 4.0), (shown, 4.0), (slow, 6.0)):
        factor = math.exp(math.hypot(math.log(longest / estimate.value), math.log(limits.high)))
        assert estimate.high == pytest.approx(factor * estimate.value, rel=0.03)
    assert shown.low < hidden.value


def test_two_gpus_without_peer_access_compute_and_exchange_in_turn() -> None:
    card = DEVICES["rtx3090"]
    assert card.peer_access is False and card.bandwidth
    steps = update(forward=op(size=10**12), backward=op(size=10**12), optimizer=op())
    facts = dataclasses.replace(steps.facts, parameters_trainable=10**6, weight_bytes=13 * 10**9)
    steps = dataclasses.replace(steps, facts=facts)
    one, two = seconds(steps, card), seconds(steps, card, gpus=2, sharding="zero3")
    exchanged = 13e9 / link_of(card).bandwidth
    assert two.value == pytest.approx(one.value + exchanged, rel=0.01)
    # Nothing waits for gradients before backward ends.
    facts = dataclasses.replace(facts, parameters_trainable=10**8)
    replicas = seconds(dataclasses.replace(steps, facts=facts), card, gpus=2, torch_ddp=True)
    copies = 16 * 10**8 / find_rates(card).bandwidth["elementwise"]
    assert replicas.parts["exchange"] - copies == pytest.approx(exchange_seconds(25 * 2**20, 2, link_of(card)))
    assert replicas.high > (one.value + 4e8 / link_of(card).bandwidth) * 1.5


def test_library_that_reads_each_loss_does_not_run_ahead() -> None:
    # The device is busy in backward, while the host would queue the next microbatch.
    small, long = dataclasses.replace(op(size=1), calls=2000), op(size=round(WIDE))
    steps = update(forward=small, backward=long, optimizer=op(), microbatches=2)
    ahead, waiting = seconds(steps, microbatches=4), seconds(steps, microbatches=4, by_library=True)
    lost = waiting.parts["forward"] - ahead.parts["forward"]
    assert lost == pytest.approx(3 * (1999 * VIEW + CALL), rel=0.01)
    assert waiting.parts["backward"] == pytest.approx(ahead.parts["backward"], rel=0.01)


def test_compiled_updates_may_be_faster_by_what_is_published() -> None:
    steps = update(forward=op(size=round(WIDE)), backward=op(), optimizer=op())
    plain, compiled = seconds(steps), seconds(steps, compiled=True)
    assert (compiled.value, compiled.high) == (plain.value, plain.high)
    assert compiled.low == pytest.approx(plain.low / 1.21)
    half = dataclasses.replace(steps, precision="fp16")
    assert seconds(half, compiled=True).low == pytest.approx(plain.low / 1.51)


def test_tf32_shortens_products() -> None:
    steps = update(
        forward=Op("aten::mm", 10**13, 0, "fp32", shape=(1, 8192, 8192, 8192)), backward=op(), optimizer=op()
    )
    a100 = DEVICES["a100-80"]
    assert seconds(steps, a100, tf32=True).parts["forward"] < 0.3 * seconds(steps, a100).parts["forward"]
    assert seconds(steps, tf32=True) == seconds(steps)


def test_unknown_rates_give_no_time() -> None:
    steps = update(forward=op(), backward=op(), optimizer=op())
    assert update_seconds(steps, dataclasses.replace(T4, bandwidth=None), 1) is None
    assert update_seconds(steps, dataclasses.replace(T4, fp32_flops=None), 1) is None


@pytest.mark.parametrize("device", [*DEVICES.values(), local_cpu().device], ids=lambda device: device.name)
def test_range_contains_the_value_and_has_a_source(device: Device) -> None:
    estimate = seconds(update(forward=op(flops=10**12), backward=op(size=10**9), optimizer=op()), device, 3)
    assert estimate.low < estimate.value < estimate.high
    assert estimate.source


def test_range_excludes_the_spread_of_the_own_source() -> None:
    trace = update(forward=op(size=round(WIDE)), backward=op(), optimizer=op())
    estimate = seconds(trace)
    limits = spread(T4)
    assert (estimate.low, estimate.high) == pytest.approx(
        (limits.low * estimate.value, limits.high * estimate.value), rel=1e-3
    )
    name = "nikhildinesharora/BERT-FineTuning-SQuAD-CUDA"
    without_own = seconds(trace, without=name)
    assert without_own.value == estimate.value and without_own.low != estimate.low
    assert name in estimate.source and name not in without_own.source
    assert set(estimate.range_names) - set(without_own.range_names) == {name}


def test_limits_of_the_host_and_of_the_spread_are_independent() -> None:
    # Each operator waits for the host, which may be twice as slow as is typical.
    rates, limits = MEASURED_RATES["t4"], spread(T4)
    small = update(forward=op(size=1), backward=op(size=1), optimizer=op(size=1))
    estimate = seconds(small)
    host = (3 * rates.call_seconds[2] + KERNEL) / (3 * CALL + KERNEL)
    expected = math.exp(math.hypot(math.log(host), math.log(limits.high)))
    assert estimate.high / estimate.value == pytest.approx(expected)
    assert max(host, limits.high) < expected < host * limits.high


def test_rates_are_not_from_a_scored_source() -> None:
    for device, sources in SCORED.items():
        rates = MEASURED_RATES.get(device)
        assert rates is None or not any(name in rates.source for name in sources)


def test_exchange_is_not_predicted_from_its_own_measurement() -> None:
    trace = update(forward=op(), backward=op(), optimizer=op())
    trace = dataclasses.replace(trace, facts=dataclasses.replace(trace.facts, parameters_trainable=10**9))
    without_own_link = seconds(trace, gpus=2, without="Shakhtar-Sankur/tandem")
    assert without_own_link.parts["exchange"] != seconds(trace, gpus=2).parts["exchange"]


def test_calibration_replaces_the_scored_spread() -> None:
    trace = update(forward=op(size=round(WIDE)), backward=op(), optimizer=op())
    measured_spread = Spread(low=0.98, high=1.03, source="200 updates measured in run")
    measured = Calibration(device=T4.title, factor=1.5, spread=measured_spread, input_seconds=0.0, save_rate=None)
    plain, calibrated = seconds(trace), seconds(trace, calibration=measured)
    assert calibrated.value == pytest.approx(1.5 * plain.value) and calibrated.calibration == 1.5
    assert (calibrated.low, calibrated.high) == pytest.approx((0.98 * calibrated.value, 1.03 * calibrated.value))
    assert calibrated.source == "200 updates measured in run"
    other_device = dataclasses.replace(measured, device="NVIDIA L4")
    assert seconds(trace, calibration=other_device) == plain
