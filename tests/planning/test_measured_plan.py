"""Plans with a measurement, and the JSON of measurements."""

import json
from dataclasses import replace

import pytest

from shoestring.base.settings import Settings
from shoestring.base.units import GIB, MIB
from shoestring.hardware import targets
from shoestring.planning.estimate.calibration import calibration
from shoestring.planning.estimate.span import total
from shoestring.planning.measured_memory import COPY, PLANNING, UNEXPLAINED
from shoestring.planning.measured_plan import with_measurement
from shoestring.planning.measurement import Measurement
from shoestring.planning.planner import make_plan
from shoestring.planning.sessions import WAITING
from shoestring.recipe.finding import load
from tests.planning.trace.sample_recipes import Mlp

MEASURED = Measurement(
    device="a CPU",
    micro_batch=10,
    updates=6,
    update_seconds=2.0,
    low_update_seconds=1.5,
    high_update_seconds=3.0,
    first_update_seconds=9.0,
    waiting_seconds=0.5,
    start_seconds=4.0,
    data_seconds=1.0,
    peak_bytes=GIB,
    host_peak_bytes=GIB,
    growing_bytes=3 * MIB,
    planning_bytes=5 * MIB,
    state_bytes=10 * MIB,
    evaluation_seconds_per_sample=0.25,
    evaluated_samples=8,
    seconds=12.0,
    notes=("a note",),
)


class WithData(Mlp):
    """An MLP with data of 100 samples."""

    epochs = 3

    def data(self):
        return {"train": [0] * 100, "validation": [0] * 40}


RECIPE = load(WithData(), {"effective_batch": 10})
SETTINGS = Settings(micro_batch=10, precision="fp32", checkpointing="no")


@pytest.fixture(scope="module")
def cpu_plan():
    return make_plan(RECIPE, targets.find("cpu"), SETTINGS)


@pytest.fixture(scope="module")
def gpu_plan():
    """A plan with a wide range of the memory."""
    plan = make_plan(RECIPE, targets.find("kaggle-t4"), SETTINGS)
    memory = plan.memory
    reserved = replace(memory.reserved, high=memory.reserved.high + GIB)
    return replace(plan, memory=replace(memory, reserved=reserved, high_bytes=memory.high_bytes + GIB))


def test_measurement_is_json():
    text = json.dumps(MEASURED.json(), allow_nan=False)
    assert Measurement.from_json(json.loads(text)) == MEASURED
    with pytest.raises(TypeError, match="unknown"):
        Measurement.from_json({**MEASURED.json(), "unknown": 1})


def test_measured_time_replaces_the_predicted_one_which_is_kept(cpu_plan):
    plan = with_measurement(cpu_plan, MEASURED, RECIPE, SETTINGS)
    time, before = plan.time, cpu_plan.time
    assert time.predicted.update_seconds == 2.0
    assert (time.low.update_seconds, time.high.update_seconds) == pytest.approx((0.9 * 1.5, 1.1 * 3.0))
    assert (time.predicted.epoch_seconds, time.predicted.total_seconds) == (20.0, 60.0)
    assert total(time.parts.values()).seconds == pytest.approx(2.0) and time.parts[WAITING].seconds == 0.5
    share = before.parts["backward"].seconds / before.predicted.update_seconds
    assert time.parts["backward"].seconds == pytest.approx(1.5 * share)
    assert time.evaluation_seconds == 10.0
    assert plan.hours > cpu_plan.hours
    kept = plan.measured.predicted
    assert (kept.low_update_seconds, kept.update_seconds, kept.high_update_seconds) == (
        before.low.update_seconds, before.predicted.update_seconds, before.high.update_seconds,
    )  # fmt: skip
    assert (kept.peak_bytes, kept.high_bytes) == (cpu_plan.memory.peak_bytes, cpu_plan.memory.high_bytes)
    assert plan.json()["measured"]["predicted"]["peak_bytes"] == cpu_plan.memory.peak_bytes
    assert cpu_plan.json()["measured"] is None


def test_a_disturbed_probe_does_not_raise_the_low_end(cpu_plan):
    for share, low in ((0.01, 1.5), (0.03, cpu_plan.time.low.update_seconds)):
        plan = with_measurement(cpu_plan, replace(MEASURED, disturbed_share=share), RECIPE, SETTINGS)
        assert plan.time.low.update_seconds == pytest.approx(0.9 * low) and plan.time.predicted.update_seconds == 2.0


def test_later_epochs_are_faster_if_their_samples_are_in_memory(cpu_plan):
    plan = with_measurement(cpu_plan, replace(MEASURED, repeated_waiting_seconds=0.2), RECIPE, SETTINGS)
    saved = (0.5 - 0.2) * 2 / 3  # of an update of three epochs
    assert plan.time.predicted.update_seconds == pytest.approx(2.0 - saved)
    assert plan.time.parts[WAITING].seconds == pytest.approx(0.5 - saved)
    assert plan.time.low.update_seconds == pytest.approx(0.9 * 1.5 * (1 - saved / 2.0))
    assert plan.time.high.update_seconds == pytest.approx(1.1 * 3.0)
    slower = with_measurement(cpu_plan, replace(MEASURED, repeated_waiting_seconds=0.6), RECIPE, SETTINGS)
    assert slower.time.predicted.update_seconds == 2.0


def test_an_evaluation_that_was_not_measured_is_scaled_with_the_updates(cpu_plan):
    plan = with_measurement(cpu_plan, replace(MEASURED, evaluation_seconds_per_sample=None), RECIPE, SETTINGS)
    ratio = 2.0 / cpu_plan.time.predicted.update_seconds
    assert plan.time.evaluation_seconds == pytest.approx(ratio * cpu_plan.time.evaluation_seconds)
    assert plan.work.epoch_end["evaluation"] == cpu_plan.work.epoch_end["evaluation"] * ratio


def test_the_whole_run_has_what_was_measured_once(cpu_plan):
    work = with_measurement(cpu_plan, MEASURED, RECIPE, SETTINGS, planning_seconds=6.0).work
    assert work.start["starting"].seconds == 4.0 and work.start["first update"].seconds == 7.0
    assert work.first["planning"].seconds == 6.0
    later = with_measurement(cpu_plan, replace(MEASURED, seconds=20.0), RECIPE, SETTINGS).work  # a run probes again
    assert later.first["planning"].seconds == pytest.approx(cpu_plan.work.first["planning"].seconds + 20.0)
    assert work.epoch_end["evaluation"].seconds == 40 * 0.25 and "answers" not in work.first
    answered = replace(MEASURED, answer_seconds=0.5, answers=8)
    work = with_measurement(cpu_plan, answered, RECIPE, SETTINGS).work
    assert work.first["answers"].seconds == work.epoch_end["answers"].seconds == 4.0


def test_parts_of_measured_memory_sum_to_the_peak(cpu_plan):
    memory = with_measurement(cpu_plan, MEASURED, RECIPE, SETTINGS).memory
    parts = {part.name: part.bytes for part in memory.parts}
    assert parts[COPY] == round(1.1 * 10 * MIB)
    assert parts[PLANNING] == 5 * MIB
    assert sum(parts.values()) == memory.peak_bytes == GIB + 5 * MIB + parts[COPY]
    assert parts["weights"] == {part.name: part.bytes for part in cpu_plan.memory.parts}["weights"]
    assert parts[UNEXPLAINED] > 0
    assert (memory.low_bytes, memory.high_bytes) == (cpu_plan.memory.low_bytes, memory.peak_bytes + (3 + 64) * MIB)
    few = with_measurement(cpu_plan, replace(MEASURED, updates=1), RECIPE, SETTINGS).memory  # its growth has just begun
    assert few.high_bytes == memory.high_bytes + 3 * MIB


def test_parts_are_smaller_if_less_was_measured_than_predicted(cpu_plan):
    measured_bytes = cpu_plan.memory.peak_bytes // 2
    memory = with_measurement(cpu_plan, replace(MEASURED, peak_bytes=measured_bytes), RECIPE, SETTINGS).memory
    parts = {part.name: part.bytes for part in memory.parts}
    assert sum(parts.values()) - parts[COPY] - parts[PLANNING] == measured_bytes
    assert parts["process"] == pytest.approx(cpu_plan.memory.parts[-1].bytes / 2, rel=0.01)


def test_the_high_end_of_an_incomplete_probe_is_at_least_the_predicted_one(cpu_plan):
    little = replace(MEASURED, peak_bytes=cpu_plan.memory.peak_bytes // 2)
    assert with_measurement(cpu_plan, little, RECIPE, SETTINGS).memory.high_bytes < cpu_plan.memory.high_bytes
    incomplete = with_measurement(cpu_plan, replace(little, problem="it was killed"), RECIPE, SETTINGS)
    assert incomplete.memory.high_bytes == cpu_plan.memory.high_bytes


def test_measured_memory_beyond_the_machine_does_not_fit(cpu_plan):
    plan = with_measurement(
        cpu_plan, replace(MEASURED, peak_bytes=2 * cpu_plan.memory.capacity_bytes), RECIPE, SETTINGS
    )
    assert plan.verdict == "does not fit" and not plan.memory.fits
    assert (plan.binding.name, plan.binding.needs) == ("memory", plan.memory.high_bytes)


def test_on_a_gpu_the_range_of_the_memory_is_corrected(gpu_plan):
    memory = gpu_plan.memory
    more = with_measurement(gpu_plan, replace(MEASURED, peak_bytes=memory.reserved.high + GIB), RECIPE, SETTINGS).memory
    assert more.high_bytes > memory.high_bytes + GIB
    less = with_measurement(gpu_plan, replace(MEASURED, peak_bytes=memory.reserved.value), RECIPE, SETTINGS).memory
    assert memory.peak_bytes <= less.high_bytes < memory.high_bytes
    for corrected in (more, less):
        assert (corrected.peak_bytes, corrected.low_bytes) == (memory.peak_bytes, memory.low_bytes)
    least = with_measurement(gpu_plan, replace(MEASURED, peak_bytes=memory.reserved.low - MIB), RECIPE, SETTINGS)
    assert (least.memory.peak_bytes, least.memory.low_bytes) == (memory.peak_bytes, memory.low_bytes - MIB)


def test_what_torch_reserves_is_compared_without_the_context(gpu_plan):
    plan = with_measurement(gpu_plan, replace(MEASURED, peak_bytes=gpu_plan.memory.reserved.value), RECIPE, SETTINGS)
    predicted = plan.measured.predicted
    assert predicted.peak_bytes == gpu_plan.memory.reserved.value < gpu_plan.memory.peak_bytes
    assert predicted.high_bytes == gpu_plan.memory.reserved.high


def test_less_memory_of_the_first_updates_says_nothing_if_lengths_vary(gpu_plan):
    recipe = replace(RECIPE, recipe=WithLengths())
    measured = replace(MEASURED, peak_bytes=gpu_plan.memory.reserved.value)
    assert with_measurement(gpu_plan, measured, recipe, SETTINGS).memory == gpu_plan.memory


class WithLengths(WithData):
    """The same, of varied length."""

    def length(self, data, index):
        return index


def test_the_shortest_session_follows_the_measured_update(gpu_plan):
    (limit,) = [limit for limit in gpu_plan.limits if limit.kind == "session"]
    plan = with_measurement(gpu_plan, MEASURED, RECIPE, SETTINGS)
    (measured_limit,) = [limit for limit in plan.limits if limit.kind == "session"]
    # It starts in 4 s, and its first update takes 7 s more; the epoch of ten has 40 samples to evaluate.
    update = 2.0 * (1 + gpu_plan.work.saving_share.seconds)
    evaluation = (40 * 0.25 + gpu_plan.work.epoch_end["saving"].seconds) / 10
    saves = gpu_plan.work.stop["saving"].seconds + gpu_plan.work.restart["loading weights"].seconds
    assert measured_limit.needs == pytest.approx(60 + 4 + 7 + saves + update + evaluation)
    assert measured_limit.needs != limit.needs
    assert limit.text(measured_limit.needs) in measured_limit.enough


def test_what_one_process_measured_does_not_replace_the_prediction_for_several(cpu_plan):
    settings = cpu_plan.settings.replace(gpus=2, logical_shards=2)
    plan = with_measurement(replace(cpu_plan, settings=settings), MEASURED, RECIPE, SETTINGS)
    assert plan.time == cpu_plan.time and plan.memory == cpu_plan.memory
    assert plan.measured.predicted and plan.measured.update_seconds == 2.0


def test_a_failed_measurement_changes_nothing_but_is_kept(cpu_plan):
    plan = with_measurement(cpu_plan, Measurement(device="a CPU", problem="it was killed"), RECIPE, SETTINGS)
    assert (plan.time, plan.memory, plan.sessions) == (cpu_plan.time, cpu_plan.memory, cpu_plan.sessions)
    assert plan.reasons[-1] == "measured before training: nothing: it was killed"


def test_calibration_compares_with_the_prediction_and_not_with_the_measurement(cpu_plan):
    plan = with_measurement(cpu_plan, MEASURED, RECIPE, SETTINGS).json()
    session = {"event": "session", "target": plan["target"], "micro_batch": 10}
    progress = {"event": "progress", "updates": 10, "seconds": 20.0, "waiting_seconds": 0.0}
    factor = calibration("run", plan, [session, *[progress] * 5]).factor
    assert factor == pytest.approx(2.0 / cpu_plan.time.predicted.update_seconds)
