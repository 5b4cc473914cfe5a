"""Seconds of handmade records: they are those that the estimator of plans has for the same operators."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.exchange import LINKS, exposed_seconds, replica_seconds
from shoestring.planning.estimate.rates import MEASURED_RATES
from shoestring.planning.simulator.recorded import (
    BACKWARD,
    EVALUATION,
    GENERATION,
    RECOMPUTATION,
    TRAINING,
    RecordedOperators,
    read_operators,
)
from shoestring.planning.simulator.time import RecordedTime, recorded_time
from shoestring.planning.simulator.traces import CHECKPOINTED_PYTHON_CALLS, PYTHON_CALLS, RECOMPUTED_PYTHON_CALLS
from tests.planning.simulator.records import Writer, tensor

T4 = DEVICES["t4"]
RATES = MEASURED_RATES["t4"]
CALL, VIEW, PYTHON = RATES.call_seconds[1], RATES.view_seconds, RATES.python_seconds[1]
WIDE = RATES.bandwidth["elementwise"]


class Script(Writer):
    """A record of calls of `aten::neg`, which take as many seconds as they are told to."""

    def __init__(self) -> None:
        super().__init__()
        self._neg = self.operator("aten::neg", ["self"])

    def neg(self, seconds: float, **options: Any) -> int:
        """Return a call that takes so many seconds on a T4, half of them for reading."""
        size = round(seconds * WIDE / 8)
        return self.call(self.signature(self._neg, [tensor(size)], [tensor(size)]), **options)

    def microbatch(self, forward: float, backward: float) -> int:
        return self.segment([self.neg(forward), self.neg(backward, step=BACKWARD)])

    def time(self, folder: Path, **options: Any) -> RecordedTime:
        result = recorded_time([self.recorded(folder)], T4, **options)
        assert result is not None
        return result

    def recorded(self, folder: Path, process: int = 77) -> RecordedOperators:
        result = read_operators(self.write(folder, process))
        assert result is not None
        return result


def test_phases_of_an_update(tmp_path: Path) -> None:
    script = Script()
    script.unit([script.microbatch(1.0, 2.0), script.segment([script.neg(0.5)])], weight=3)
    script.totals(TRAINING, 3, 3, 9, 9)
    time = script.time(tmp_path)
    assert time.update is not None
    assert time.update.parts == pytest.approx({"forward": 1.0, "backward": 2.0, "optimizer": 0.5}, rel=1e-3)
    assert time.update.low < time.update.value < time.update.high
    assert (time.microbatches, time.updates, time.different_updates) == (1, 3, 1)
    assert time.mean_update.seconds == time.update.value


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_microbatches_add_up_whether_equal_or_not(tmp_path: Path, count: int) -> None:
    script = Script()
    equal, other, step = script.microbatch(1.0, 2.0), script.microbatch(0.3, 0.4), script.segment([script.neg(0.5)])
    script.unit([*[equal] * count, other, step])
    time = script.time(tmp_path)
    assert time.update is not None
    expected = {"forward": count + 0.3, "backward": 2 * count + 0.4, "optimizer": 0.5}
    assert time.update.parts == pytest.approx(expected, rel=1e-3)
    assert time.microbatches == count + 1


def test_lead_of_the_host_holds_for_the_optimizer(tmp_path: Path) -> None:
    script = Script()
    small = [script.neg(1e-9, views=5)] * 100
    script.unit([*[script.microbatch(0.1, 0.1)] * 3, script.segment(small)])
    time = script.time(tmp_path)
    assert time.update is not None
    assert time.update.parts["optimizer"] == pytest.approx(100 * RATES.kernel_seconds, rel=1e-3)


def test_host_calls_views_and_python(tmp_path: Path) -> None:
    script = Script()
    norm = script.operator("aten::native_layer_norm", ["input"])
    small = script.signature(norm, [tensor(1)], [tensor(1)])
    layer, gradient = script.call(small, views=3), script.call(small, views=3, step=BACKWARD)
    script.unit([script.segment([*[layer] * 100, *[gradient] * 100])])
    time = script.time(tmp_path)
    assert time.update is not None
    host = RATES.call_factors["norm"] * CALL + 3 * VIEW
    assert time.update.parts["forward"] == pytest.approx(100 * (host + PYTHON_CALLS * PYTHON), rel=0.01)
    assert time.update.parts["backward"] == pytest.approx(100 * host, rel=0.01)


def test_checkpointing_calls_more_python_in_forward_and_in_recomputation(tmp_path: Path) -> None:
    script = Script()
    norm = script.operator("aten::native_layer_norm", ["input"])
    small = script.signature(norm, [tensor(1)], [tensor(1)])
    steps = [script.call(small, step=step) for step in (0, RECOMPUTATION, BACKWARD)]
    script.unit([script.segment([call for call in steps for _ in range(100)])])
    time = script.time(tmp_path)
    assert time.update is not None
    host = RATES.call_factors["norm"] * CALL
    forward = host + (PYTHON_CALLS + CHECKPOINTED_PYTHON_CALLS) * PYTHON
    assert time.update.parts["forward"] == pytest.approx(100 * forward, rel=0.01)
    assert time.update.parts["backward"] == pytest.approx(100 * (2 * host + RECOMPUTED_PYTHON_CALLS * PYTHON), rel=0.01)


def test_backward_pass_that_builds_a_graph_is_no_recomputation(tmp_path: Path) -> None:
    script = Script()
    norm = script.operator("aten::native_layer_norm", ["input"])
    small = script.signature(norm, [tensor(1)], [tensor(1)])
    calls = [script.call(small, step=step) for step in (0, RECOMPUTATION)]
    script.unit([script.segment([call for call in calls for _ in range(100)])])
    time = script.time(tmp_path)
    assert time.update is not None
    assert time.microbatches == 1
    host = RATES.call_factors["norm"] * CALL
    assert time.update.parts["forward"] == pytest.approx(100 * (host + PYTHON_CALLS * PYTHON), rel=0.01)
    assert time.update.parts["backward"] == pytest.approx(100 * host, rel=0.01)


def test_median_and_mean_of_varied_updates(tmp_path: Path) -> None:
    script = Script()
    for seconds, weight in ((1.0, 5), (2.0, 3), (10.0, 3)):
        script.unit([script.microbatch(seconds / 2, seconds / 2)], weight=weight)
    script.totals(TRAINING, 20, 11, 40, 22)
    time = script.time(tmp_path)
    assert time.update is not None
    assert time.update.value == pytest.approx(2.0, rel=1e-3)
    assert time.mean_update.seconds == pytest.approx((5 * 1 + 3 * 2 + 3 * 10) / 11, rel=1e-3)
    assert time.mean_update.low < time.mean_update.seconds < time.mean_update.high
    assert (time.updates, time.different_updates) == (20, 3)


def test_hundreds_of_different_updates_are_sampled_evenly(tmp_path: Path) -> None:
    script = Script()
    for number in range(500):
        script.unit([script.microbatch(0.5 + number / 500, 0.5)], update=number)
    mean = script.time(tmp_path).mean_update.seconds
    assert mean == pytest.approx(1.5, rel=0.02)


def test_evaluation_and_generation_are_scaled_to_all_calls(tmp_path: Path) -> None:
    script = Script()
    script.unit([script.segment([script.neg(1.0)])], phase=EVALUATION, weight=4)
    script.unit([script.segment([script.neg(3.0)])], phase=EVALUATION, weight=2)
    script.totals(EVALUATION, 12, 6, 12, 6)
    script.unit([script.segment([script.neg(0.25)])], phase=GENERATION, weight=8)
    script.totals(GENERATION, 8, 8, 8, 8)
    time = script.time(tmp_path)
    assert time.update is None
    assert time.evaluation.seconds == pytest.approx(2 * (4 * 1 + 2 * 3), rel=1e-3)
    assert time.generation.seconds == pytest.approx(2.0, rel=1e-3)


def ddp(script: Script, size: int, microbatches: int, *, every: bool) -> None:
    """Add an update whose gradients of `size` bytes are reduced in the last microbatch or in each."""
    reduce = script.operator("c10d::allreduce_", ["tensors", "process_group"])
    signature = script.signature(reduce, [{"list": [[tensor(size // 4), 1]]}, None])
    plain = script.microbatch(1.0, 2.0)
    calls = [script.neg(1.0), script.neg(2.0, step=BACKWARD), script.call(signature, step=BACKWARD)]
    reduced = script.segment(calls)
    script.unit([reduced if every else plain] * (microbatches - 1) + [reduced, script.segment([script.neg(0.5)])])


def test_gradients_overlap_with_one_backward_pass(tmp_path: Path) -> None:
    size = 20 * 2**30
    for microbatches in (1, 2, 4):
        script = Script()
        ddp(script, size, microbatches, every=False)
        update = script.time(tmp_path, gpus=2).update
        assert update is not None
        expected = 4 * size / WIDE + exposed_seconds(size, 2, LINKS[0], 2.0)
        assert update.parts["exchange"] == pytest.approx(expected, rel=1e-3)
        parts = {name: update.parts[name] for name in ("forward", "backward", "optimizer")}
        assert parts == pytest.approx(
            {"forward": microbatches, "backward": 2 * microbatches, "optimizer": 0.5}, rel=0.01
        )


def test_gradients_that_are_exchanged_after_each_microbatch_take_as_often_longer(tmp_path: Path) -> None:
    once, often = Script(), Script()
    ddp(once, 2**30, 3, every=False)
    ddp(often, 2**30, 3, every=True)
    one, three = once.time(tmp_path, gpus=2).update, often.time(tmp_path, gpus=2).update
    assert one is not None and three is not None
    assert three.parts["exchange"] == pytest.approx(3 * one.parts["exchange"], rel=1e-6)
    assert three.low < three.value < three.high


def test_one_gpu_does_not_exchange(tmp_path: Path) -> None:
    script = Script()
    ddp(script, 2**30, 2, every=False)
    update = script.time(tmp_path).update
    assert update is not None
    assert "exchange" not in update.parts


def test_shards_gather_weights(tmp_path: Path) -> None:
    script = Script()
    gather = script.operator("c10d::_allgather_base_", ["output", "input"])
    scatter = script.operator("c10d::_reduce_scatter_base_", ["output", "input"])
    size = 2**28
    gathered = script.signature(gather, [tensor(size), tensor(size // 2)])
    scattered = script.signature(scatter, [tensor(size // 2), tensor(size)])
    calls = [script.call(gathered), script.neg(0.1), script.call(gathered, step=BACKWARD)]
    calls += [script.neg(0.1, step=BACKWARD), script.call(scattered, step=BACKWARD)]
    script.unit([script.segment(calls)] * 2 + [script.segment([script.neg(0.1)])])
    time = script.time(tmp_path, gpus=2)
    assert time.update is not None
    # Two gathers and a reduction of 1 GiB each, of which 0.2 s of computation hide a part, in both microbatches.
    assert time.update.parts["exchange"] > 2 * (1.5 * 2**30 / LINKS[0].bandwidth - 0.2)
    assert any("FSDP" in note for note in time.notes)


def test_replicas_in_threads_share_the_host(tmp_path: Path) -> None:
    script = Script()
    update = script.operator("aten::_foreach_mul_.Scalar", ["self", "scalar"], written=[0])
    size = 2**26
    step = script.call(script.signature(update, [{"list": [[tensor(size // 4), 1]]}, None]))
    calls = [script.neg(1.0, device=device, is_other_thread=True) for device in (0, 1)]
    calls += [script.neg(2.0, device=device, is_other_thread=True, step=BACKWARD) for device in (0, 1)]
    script.unit([script.segment(calls), script.segment([step])])
    time = script.time(tmp_path)
    assert time.update is not None
    # Both compute at the same time.
    assert time.update.parts["forward"] == pytest.approx(1.0, rel=1e-3)
    assert time.update.parts["backward"] == pytest.approx(2.0, rel=1e-3)
    assert time.update.parts["exchange"] == pytest.approx(replica_seconds(size, 2, LINKS[0], sends_weights=True))
    assert any("DataParallel" in note for note in time.notes)


def test_several_gpus_that_exchange_nothing_have_the_time_of_one(tmp_path: Path) -> None:
    script = Script()
    script.unit([script.microbatch(1.0, 2.0), script.segment([script.neg(0.5)])])
    assert script.time(tmp_path, gpus=2) == script.time(tmp_path, gpus=1)


def test_processes_that_train_are_the_gpus_that_exchange(tmp_path: Path) -> None:
    records = []
    for process in (1, 2):
        script = Script()
        ddp(script, 2**30, 1, every=False)
        records.append(script.recorded(tmp_path, process))
    assert recorded_time(records, T4) == recorded_time(records, T4, gpus=2) != recorded_time(records, T4, gpus=1)


def test_layers_on_several_gpus_in_turn_are_no_replicas(tmp_path: Path) -> None:
    script = Script()
    calls = [script.neg(1.0, device=device) for device in (0, 1)]
    calls += [script.neg(2.0, device=device, is_other_thread=True, step=BACKWARD) for device in (1, 0)]
    script.unit([script.segment(calls), script.segment([script.neg(0.5)])])
    time = script.time(tmp_path)
    assert time.update is not None
    assert time.update.parts == pytest.approx({"forward": 2.0, "backward": 4.0, "optimizer": 0.5}, rel=1e-3)


def test_slowest_process_counts(tmp_path: Path) -> None:
    records = []
    for process, seconds in ((1, 1.0), (2, 4.0), (3, 2.0)):
        script = Script()
        script.unit([script.microbatch(seconds, 0.1)])
        records.append(script.recorded(tmp_path, process))
    empty = Script().recorded(tmp_path, 4)
    time = recorded_time([*records, empty], T4)
    assert time is not None and time.update is not None
    assert time.update.parts["forward"] == pytest.approx(4.0, rel=1e-3)


def test_nothing_recorded(tmp_path: Path) -> None:
    time = Script().time(tmp_path)
    assert (time.update, time.updates, time.mean_update.seconds) == (None, 0, 0.0)


def test_device_without_rates_has_no_time(tmp_path: Path) -> None:
    unknown = dataclasses.replace(T4, bandwidth=None)
    script = Script()
    assert recorded_time([script.recorded(tmp_path)], unknown) is None
    script.unit([script.microbatch(1.0, 2.0)])
    assert recorded_time([script.recorded(tmp_path)], unknown) is None


def test_record_at_its_limit_is_noted(tmp_path: Path) -> None:
    script = Script()
    script.unit([script.microbatch(1.0, 2.0)])
    script.fill()
    assert any("limit" in note for note in script.time(tmp_path).notes)
