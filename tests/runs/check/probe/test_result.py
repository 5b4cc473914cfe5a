"""The measurement that the stages of a probe show."""

import pytest

from shoestring.runs.check.probe.result import measurement


def update(seconds, *, number=0, loss_stage=0, purpose="", length=None, peak=100, disturbed=0.0):
    return {
        "stage": "update", "number": number, "loss_stage": loss_stage, "purpose": purpose, "seconds": seconds,
        "samples": 8, "loss": 1.0, "waiting_seconds": 0.01, "length": length, "bytes": peak, "host_bytes": peak + 50,
        "disturbed_share": disturbed,
    }  # fmt: skip


def later(waiting_seconds):
    return {**update(1.0, purpose="later"), "waiting_seconds": waiting_seconds}


def stages(*updates, mean_length=None, done=True):
    started = (
        {"stage": "start", "seconds": 2.0, "resident_bytes": 100},
        {"stage": "data", "samples": 80, "seconds": 0.5},
        {"stage": "model", "seconds": 3.0, "stages": 1, "total_updates": 10, "mean_length": mean_length},
    )
    ended = {"stage": "updates", "growth_bytes": 5, "state_bytes": 7, "device": "a CPU", "micro_batch": 8, "loss": None}
    return (*started, *updates, ended, *([{"stage": "done"}] if done else []))


def measure(*updates, **changes):
    return measurement(stages(*updates, **changes), exit_reason="", device="cpu")


def test_the_first_update_is_reported_apart():
    measured = measure(update(9.0), update(1.0, peak=300), update(3.0), update(2.0))
    assert (measured.updates, measured.first_update_seconds) == (3, 9.0)
    assert (measured.low_update_seconds, measured.update_seconds, measured.high_update_seconds) == (1.0, 2.0, 3.0)
    assert (measured.start_seconds, measured.data_seconds, measured.waiting_seconds) == (3.0, 0.5, pytest.approx(0.01))
    assert (measured.peak_bytes, measured.host_peak_bytes, measured.state_bytes) == (300, 350, 7)
    assert (measured.device, measured.micro_batch, measured.problem) == ("a CPU", 8, "")


def test_one_outlier_on_each_side_of_many_updates_is_not_the_range():
    measured = measure(update(9.0), *(update(seconds) for seconds in (0.5, 1.0, 2.0, 3.0, 60.0)))
    assert (measured.low_update_seconds, measured.update_seconds, measured.high_update_seconds) == (1.0, 2.0, 3.0)


def test_updates_are_scaled_to_the_mean_length_and_the_longest_one_counts_for_memory_alone():
    measured = measure(
        update(9.0, length=10), update(1.0, length=50), update(70.0, length=900, purpose="longest", peak=999),
        update(4.0, length=200), mean_length=100.0,
    )  # fmt: skip
    assert (measured.updates, measured.update_seconds, measured.peak_bytes) == (2, 2.0, 999)


def test_the_second_of_the_repeated_updates_shows_how_long_they_wait():
    assert measure(update(9.0), update(1.0), later(0.2), later(0.001)).repeated_waiting_seconds == 0.001
    assert measure(update(9.0), update(1.0), later(0.2)).repeated_waiting_seconds is None


def test_stages_of_a_loss_have_equal_weights():
    measured = measure(update(9.0), update(3.0, loss_stage=1), update(1.0, loss_stage=0), update(5.0, loss_stage=1))
    assert (measured.low_update_seconds, measured.update_seconds, measured.high_update_seconds) == (2.0, 2.5, 3.0)


def test_times_of_fewer_samples_are_scaled():
    measured = measurement(stages(update(9.0), update(1.0)), exit_reason="", device="cpu", scale=4.0)
    assert (measured.first_update_seconds, measured.update_seconds) == (36.0, 4.0)


def make_evaluation(seconds, samples, left=0):
    peaks = {"bytes": 500, "host_bytes": 600}
    return {"stage": "evaluation", "seconds": seconds, "samples": samples, "left_bytes": left, **peaks}


@pytest.mark.parametrize(
    ("seconds", "samples", "expected"),
    [([2.0, 0.5, 1.0], [4, 4, 2], (0.25, 6)), ([2.0], [4], (0.5, 4)), ([], [], (None, 0))],
)
def test_evaluation_is_measured_without_its_first_piece_if_there_is_another(seconds, samples, expected):
    evaluation = make_evaluation(seconds, samples)
    measured = measurement((*stages(update(1.0)), evaluation), exit_reason="", device="cpu")
    assert (measured.evaluation_seconds_per_sample, measured.evaluated_samples) == expected
    assert measured.peak_bytes == 500


def test_what_was_measured_before_a_failure_remains():
    killed = measurement(stages(update(9.0), update(1.0), done=False), exit_reason="it was killed", device="cpu")
    assert (killed.update_seconds, killed.problem) == (1.0, "it was killed (the last stage that it reported: updates)")
    error = {"stage": "error", "during": "an evaluation", "message": "no such file", "hint": "", "memory": False}
    failed = measurement((*stages(update(9.0), update(1.0), done=False), error), exit_reason="", device="cpu")
    assert (failed.update_seconds, failed.problem) == (1.0, "an evaluation fails: no such file")
    assert measurement((), exit_reason="status 3", device="cpu").problem.startswith("status 3")


def test_growth_of_the_process_is_what_its_peak_still_grew_by_at_the_end():
    assert measure(*(update(1.0, peak=peak) for peak in (100, 200, 210, 215))).growing_bytes == 5
    made = stages(update(1.0), update(1.0, peak=300))
    later = [update(1.0, peak=peak, purpose="later") for peak in (700, 740)]
    evaluated = measurement((*made, make_evaluation([1.0], [4]), *later), exit_reason="", device="cpu")
    assert (evaluated.growing_bytes, evaluated.peak_bytes, evaluated.updates) == (40, 740, 1)
    # Updates of a library's trainer are not made again: 350 bytes at the peak before, and 400 more than that.
    left = measurement((*made, make_evaluation([1.0], [4], left=400)), exit_reason="", device="cpu")
    assert left.growing_bytes == 350 + 400 - 600


def test_updates_that_others_disturbed_have_a_wider_range():
    made = measurement(stages(update(9.0), update(2.0, disturbed=0.5), update(3.0)), exit_reason="", device="a CPU")
    assert (made.low_update_seconds, made.update_seconds, made.high_update_seconds) == (1.0, 2.5, 4.0)
