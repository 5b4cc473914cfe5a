import pytest

from shoestring.training.monitor.time_breakdown import (
    ADVICE,
    TimeBreakdown,
    advice,
    bottleneck,
    compute_breakdown,
    describe_breakdown,
)

WINDOW = {"event": "progress", "seconds": 10.0, "waiting_seconds": 1.0}


def session(*extra_events, windows=10, **fields):
    return [*[{**WINDOW, **fields}] * windows, *extra_events, {"event": "stop", "seconds": 150.0}]


def test_every_second_of_a_session_has_one_cause():
    save = {"event": "save", "seconds": 9.0, "stall_seconds": 2.0}
    breakdown = compute_breakdown(session(save, save, {"event": "evaluation", "seconds": 16.0}))
    assert breakdown == TimeBreakdown(input=10, launches=None, arithmetic=90, saving=4, evaluating=16, starting=30)
    assert breakdown.total == 150 and breakdown.share("arithmetic") == pytest.approx(0.6)


def test_gpu_idle_time_without_data_waits_is_launches():
    assert compute_breakdown(session(gpu_utilisation=0.6)).launches == pytest.approx(100 * 0.4 - 10)
    assert compute_breakdown(session(gpu_utilisation=0.95)).launches == 0.0
    half_sampled = [*session(gpu_utilisation=0.5, windows=5), *session(gpu_utilisation=None, windows=5)]
    # Events without a sample count with the mean of the others.
    assert compute_breakdown(half_sampled, 150).launches == pytest.approx(100 * 0.5 - 10)


def test_killed_session_without_stop_event_has_no_starting_time():
    breakdown = compute_breakdown(session()[:-1])
    assert (breakdown.total, breakdown.starting) == (100, 0)


def test_save_without_stall_seconds_counts_all_its_seconds():
    assert compute_breakdown(session({"event": "save", "seconds": 9.0})).saving == 9


def breakdown_with(**seconds):
    return TimeBreakdown(**{**dict.fromkeys(ADVICE, 0.0), "arithmetic": 10.0, **seconds})


@pytest.mark.parametrize("cause", ["input", "launches", "saving", "evaluating", "starting"])
def test_bottleneck_is_the_largest_cause(cause):
    assert bottleneck(breakdown_with(**{cause: 11.0})) == cause
    assert bottleneck(breakdown_with(**{cause: 9.0})) == "arithmetic"


def test_advice_covers_bottleneck_and_causes_above_threshold():
    assert advice(breakdown_with()) == [("arithmetic", ADVICE["arithmetic"])]
    assert [cause for cause, _ in advice(breakdown_with(input=2.0, saving=0.5, launches=20.0))] == ["launches", "input"]


def test_gpu_that_was_idle_in_every_sample_has_a_bottleneck():
    breakdown = compute_breakdown(session(gpu_utilisation=0.0))
    assert (breakdown.arithmetic, breakdown.launches) == (0, 90)
    assert bottleneck(breakdown) == "launches"
    assert describe_breakdown(breakdown).startswith("bottleneck: launches (input 6.7%, launches 60.0%")


def test_samples_of_intervals_shorter_than_the_drivers_are_ignored():
    short = {"event": "progress", "seconds": 0.1, "waiting_seconds": 0.0, "gpu_utilisation": 0.0}
    breakdown = compute_breakdown([short] * 4, seconds=2.0)
    assert breakdown.launches is None and breakdown.arithmetic == pytest.approx(0.4)


def test_no_bottleneck_before_the_first_update():
    breakdown = compute_breakdown([{"event": "stop", "seconds": 3.0}])
    assert bottleneck(breakdown) is None and advice(breakdown) == []
    assert describe_breakdown(breakdown) == "no bottleneck known: no update was completed"


def test_description_in_one_line():
    line = describe_breakdown(breakdown_with(input=30.0))
    assert line.startswith("bottleneck: input (input 75.0%, launches 0.0%, arithmetic 25.0%, exchange 0.0%, ")
    assert "includes launches" not in line and ADVICE["input"] in line
    assert "includes launches" in describe_breakdown(breakdown_with(launches=None))


def test_invalid_numbers_count_as_zero():
    assert (
        compute_breakdown([{"event": "progress", "seconds": "nan", "waiting_seconds": None}, {"event": "save"}]).total
        == 0
    )


def test_several_gpus_exchange_and_wait():
    ranks = [{"exchange_seconds": 2.0, "waiting_seconds": 1.0}, {"exchange_seconds": 2.0, "waiting_seconds": 0.0}]
    progress = {"event": "progress", "seconds": 10.0, "ranks": ranks}
    breakdown = compute_breakdown([progress, {**progress, "ranks": [ranks[1]]}], 20.0)
    assert (breakdown.exchange, breakdown.imbalance, breakdown.arithmetic) == (2.0, 1.0, 17.0)
    assert "exchange 10.0%, imbalance 5.0%" in describe_breakdown(breakdown)
