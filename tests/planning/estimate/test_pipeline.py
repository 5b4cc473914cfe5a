"""The time of an update whose model is divided between two GPUs."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.exchange import link_of
from shoestring.planning.estimate.pipeline import copied_bytes, host_seconds, pipeline_seconds
from shoestring.planning.estimate.rates import MEASURED_RATES
from shoestring.planning.estimate.time import Seconds
from shoestring.planning.trace.record import BETWEEN_GPUS, Trace
from tests.planning.estimate.example_traces import op, update

T4 = DEVICES["t4"]
CALL = MEASURED_RATES["t4"].call_seconds[1]


def of_part(**parts: float) -> Seconds:
    value = sum(parts.values())
    return Seconds(parts=parts, low=value / 2, high=value * 2, source="")


def divided(**changes: object) -> Trace:
    steps: Mapping[str, object] = {"forward": op(), "backward": op(), "optimizer": op(), "microbatches": 3, **changes}
    return replace(update(**steps), second=update(**steps))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("second", "passes"),
    [
        ({"forward": 4.0, "backward": 8.0}, 12 + 3),  # four microbatches and one more half
        ({"forward": 2.0, "backward": 4.0}, 12 + 6 / 4),  # the slower part decides
        ({"forward": 6.0, "backward": 12.0}, 18 + 12 / 4),
    ],
)
def test_all_but_one_of_the_microbatches_take_the_time_of_the_slower_part(second, passes):
    first = of_part(forward=4.0, backward=8.0, optimizer=1.0)
    estimate = pipeline_seconds(divided(), first, of_part(**second, optimizer=0.5), T4, 4)
    assert estimate.parts["forward"] + estimate.parts["backward"] == pytest.approx(passes)
    assert estimate.parts["optimizer"] == 1.0 and estimate.parts["exchange"] == 0
    assert estimate.low == pytest.approx(estimate.value / 2)
    assert estimate.high == pytest.approx(2 * (12 + sum(second.values()) + 1.0))  # nothing at the same time


def test_one_microbatch_takes_the_time_of_both_parts():
    part = of_part(forward=1.0, backward=2.0, optimizer=0.0)
    assert pipeline_seconds(divided(), part, part, T4, 1).value == pytest.approx(6.0)


def test_one_host_launches_the_operators_of_both_gpus():
    assert host_seconds(divided(), T4, 10) == pytest.approx(10 * 4 * CALL, rel=0.3)
    launched = of_part(forward=10 * CALL, backward=10 * CALL, optimizer=0.0)
    estimate = pipeline_seconds(divided(), launched, launched, T4, 10)
    assert estimate.value == pytest.approx(host_seconds(divided(), T4, 10))


def test_both_gpus_wait_for_copies_between_them():
    trace = divided(forward=op(name=BETWEEN_GPUS, size=2 * 10**9))
    assert copied_bytes(trace) == 2 * 10**9  # of each part 1 GB, which is read and written
    part = of_part(forward=1.0, backward=2.0, optimizer=0.0)
    estimate = pipeline_seconds(trace, part, part, T4, 4)
    assert estimate.parts["exchange"] == pytest.approx(4 * 2e9 / link_of(T4).bandwidth)
