"""Plans and estimates for samples of different lengths."""

import dataclasses
import json

import pytest

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find as find_target
from shoestring.planning.estimation import make_estimate
from shoestring.planning.load import microbatch_lengths
from shoestring.planning.planner import make_plan
from shoestring.planning.varying_lengths import worst_order
from shoestring.recipe.finding import choose
from tests.planning.estimate.example_traces import FACTS

T4, T4X2 = find_target("t4"), find_target("t4x2")
LENGTHS = tuple(float(length) for length in range(1, 101))


def test_microbatches_of_an_update_begin_with_its_longest_samples(lengths_file):
    facts = dataclasses.replace(FACTS, sample_lengths=LENGTHS)
    updates = microbatch_lengths(absent(lengths_file), facts, Settings(), 2)
    assert all(update == sorted(update, reverse=True) and len(update) == 8 for update in updates)
    assert max(map(max, updates)) == 100 / 2048  # the longest sample is in some update
    assert not microbatch_lengths(absent(lengths_file), FACTS, Settings(), 2)  # unknown lengths
    assert not microbatch_lengths(choose("finetune", {})[0], facts, Settings(packing="no"), 2)  # of made-up samples


@pytest.mark.slow
def test_another_loop_takes_samples_as_they_come_and_adds_gradients_with_ddp(lengths_file):
    facts = dataclasses.replace(FACTS, sample_lengths=LENGTHS)
    plain = absent(lengths_file, trained_by="plain")
    updates = microbatch_lengths(plain, facts, Settings(), 2)
    assert any(update != sorted(update, reverse=True) for update in updates)
    # So the worst order is another one too: within an update the shortest samples may come first.
    assert worst_order([[0.9, 0.2], [0.5, 0.4]], sorts=False) == [[0.4, 0.5], [0.2, 0.9]]
    assert worst_order([[0.9, 0.2], [0.5, 0.4]]) == [[0.5, 0.4], [0.9, 0.2]]
    settings = Settings(gpus=2, micro_batch=1, precision="fp16", sharding="ddp")
    own, other = (make_estimate(loaded, T4X2, settings) for loaded in (absent(lengths_file), plain))
    buckets = [part.bytes for part in other.memory.parts if part.name == "gradient buckets"]
    # DistributedDataParallel has flat copies of all gradients; the engine has messages of 25 MiB.
    assert buckets and buckets[0] >= 4 * own.facts.parameters_trainable


@pytest.fixture(scope="module")
def lengths_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("lengths") / "lengths.json"
    counts = {"40": 300, "90": 500, "333": 120, "700": 60, "1500": 20, "2048": 2}
    file.write_text(json.dumps({"unit": "tokens", "counts": counts}))
    return file


GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_head": 4, "n_embd": 256, "vocab_size": 8192, "n_positions": 2048}


def absent(lengths_file, **values):
    """Return the recipe of a small model, for data of these lengths that are not here."""
    model = lengths_file.parent / "config.json"
    model.write_text(json.dumps({**GPT2, "architectures": ["GPT2LMHeadModel"]}))
    return choose(f"hf:{model}", {"lengths": str(lengths_file), "effective_batch": 16, "seq_len": 2048, **values})[0]


@pytest.mark.slow
def test_plan_takes_expandable_segments_for_varying_lengths_and_says_why(lengths_file):
    settings = Settings(micro_batch=1, precision="fp16", checkpointing="no")
    plan = make_plan(absent(lengths_file), T4, settings)
    assert plan.settings.allocator == "expandable"
    (reason,) = [reason for reason in plan.reasons if reason.startswith("allocator expandable")]
    assert "would be reserved" in reason
    assert plan.memory.reserved.value <= 1.15 * plan.memory.allocated.value
    requested = make_plan(absent(lengths_file), T4, settings.replace(allocator="segments"))
    assert requested.settings.allocator == "segments"
    assert requested.memory.reserved.high > plan.memory.reserved.value


@pytest.mark.slow
def test_estimate_of_the_lengths_lies_below_that_of_the_longest(lengths_file, tmp_path):
    longest = tmp_path / "longest.json"
    longest.write_text(json.dumps({"unit": "tokens", "counts": {"2048": 7}}))
    settings = Settings(micro_batch=1, precision="fp16")
    varying, constant = (make_estimate(absent(file), T4, settings).memory for file in (lengths_file, longest))
    assert varying.allocated.value <= constant.allocated.value
    assert varying.reserved.high >= constant.reserved.high


def test_lengths_beyond_the_largest_are_cut(tmp_path):
    file = tmp_path / "lengths.json"
    file.write_text(json.dumps({"unit": "tokens", "counts": {"1000000": 3, "10": 50}}))
    facts = dataclasses.replace(FACTS, sample_lengths=absent(file).lengths.quantiles())
    lengths = {length for update in microbatch_lengths(absent(file), facts, Settings(), 1) for length in update}
    assert lengths == {10 / 2048, 1.0}
