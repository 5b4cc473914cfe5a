"""Plans and estimates for samples of different lengths."""

import dataclasses
import json

import pytest

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find as find_target
from shoestring.planning.estimation import make_estimate
from shoestring.planning.load import microbatch_lengths
from shoestring.planning.planner import make_plan
from shoestring.recipe.finding import choose
from tests.planning.estimate.example_traces import FACTS

T4 = find_target("t4")
LENGTHS = tuple(float(length) for length in range(1, 101))


def finetune(**values):
    return choose("finetune", {"seq_len": 100, "effective_batch": 8, **values})[0]


def test_microbatches_of_an_update_begin_with_its_longest_samples():
    facts = dataclasses.replace(FACTS, sample_lengths=LENGTHS)
    updates = microbatch_lengths(finetune(), facts, Settings(packing="no"), 2)
    assert all(update == sorted(update, reverse=True) and len(update) == 4 for update in updates)
    assert max(map(max, updates)) == 1.0  # the longest sample is in some update
    assert not microbatch_lengths(finetune(), FACTS, Settings(packing="no"), 2)  # unknown lengths


def test_a_librarys_loader_takes_samples_as_they_come():
    loaded = finetune()
    learning = dataclasses.replace(loaded.parts.learning, trainer=object())
    facts = dataclasses.replace(FACTS, sample_lengths=LENGTHS)
    library = _with_parts(loaded, dataclasses.replace(loaded.parts, learning=learning))
    updates = microbatch_lengths(library, facts, Settings(packing="no"), 2)
    assert any(update != sorted(update, reverse=True) for update in updates)


def _with_parts(loaded, parts):
    class WithParts:
        effective_batch = loaded.effective_batch

    WithParts.parts = parts
    return WithParts


@pytest.fixture(scope="module")
def lengths_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("lengths") / "lengths.json"
    counts = {"40": 300, "90": 500, "333": 120, "700": 60, "1500": 20, "2048": 2}
    file.write_text(json.dumps({"unit": "tokens", "counts": counts}))
    return file


def absent(lengths_file, **values):
    return choose("finetune", {"lengths": str(lengths_file), "effective_batch": 8, "seq_len": 2048, **values})[0]


def test_plan_takes_expandable_segments_for_varying_lengths_and_says_why(lengths_file):
    plan = make_plan(absent(lengths_file), T4, Settings(packing="no"))
    assert plan.settings.allocator == "expandable"
    (reason,) = [reason for reason in plan.reasons if reason.startswith("allocator expandable")]
    assert "would be reserved" in reason
    assert plan.memory.reserved.value <= 1.15 * plan.memory.allocated.value
    requested = make_plan(absent(lengths_file), T4, Settings(packing="no", allocator="segments"))
    assert requested.settings.allocator == "segments"
    assert requested.memory.reserved.high > plan.memory.reserved.value


def test_estimate_has_the_range_of_the_lengths(lengths_file):
    settings = Settings(packing="no", micro_batch=1, precision="fp16")
    varying = make_estimate(absent(lengths_file), T4, settings).memory
    constant = make_estimate(finetune(seq_len=2048), T4, settings).memory
    assert varying.reserved.high > constant.reserved.high
    assert varying.allocated.value <= constant.allocated.value


@pytest.mark.parametrize("counts", [{"1000000": 3, "10": 50}, {"2048": 7}])
def test_lengths_beyond_the_largest_are_cut_and_one_length_needs_no_second_trace(tmp_path, counts):
    file = tmp_path / "lengths.json"
    file.write_text(json.dumps({"unit": "tokens", "counts": counts}))
    estimate = make_estimate(absent(file), T4, Settings(packing="no", micro_batch=1, precision="fp16"))
    assert estimate.memory.fits
