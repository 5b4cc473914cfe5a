"""The work of shorter samples, from a trace of a typical length."""

from dataclasses import replace

import pytest

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.planning.length_work import PROPORTIONAL, LengthWork, find_length_work
from shoestring.planning.load import load_of_shard
from shoestring.planning.planner import make_plan
from shoestring.planning.trace import Tracer
from shoestring.recipe.finding import choose
from tests.planning.estimate.example_traces import FACTS

CPU = find("cpu")
FIXED = Settings(micro_batch=4, precision="fp32", checkpointing="no")
"""Settings of a plan that has nothing to choose."""


def test_shares_are_on_a_line_and_at_least_half_in_proportion():
    work = LengthWork(fixed=0.5, slope=0.5)
    assert [work.share(length) for length in (0.0, 0.5, 1.0)] == [0.5, 0.75, 1.0]
    quadratic = LengthWork(fixed=-0.2, slope=1.2)
    assert quadratic.share(0.5) == pytest.approx(0.4) and quadratic.share(0.1) == 0.05
    assert PROPORTIONAL.share(0.3) == 0.3


@pytest.mark.slow
def test_work_of_an_encoder_does_not_depend_on_the_length():
    legal = choose("legal", {"size": "tiny", "rows": 100, "row_tokens": 64})[0]
    vqa = choose("vqa", {"size": "tiny", "rows": 100, "row_tokens": 8})[0]
    shares = {}
    for loaded in (legal, vqa):
        with Tracer(loaded) as tracer:
            shares[loaded.name] = find_length_work(tracer, loaded, CPU.device).fixed
    assert shares["legal"] < 0.05  # attention grows faster than the length
    assert shares["vqa"] > 0.3  # the image is encoded once, however long the texts are


@pytest.mark.slow
def test_lengths_that_are_not_known_or_the_greatest_are_not_traced():
    for values in ({"rows": 100}, {"rows": 100, "row_tokens": 512}):
        loaded = choose("legal", {"size": "tiny", **values})[0]
        with Tracer(loaded) as tracer:
            assert find_length_work(tracer, loaded, CPU.device) is PROPORTIONAL


def test_load_counts_the_work_of_padded_samples():
    loaded = choose("finetune", {"seq_len": 100, "effective_batch": 4})[0]
    facts = replace(FACTS, sample_lengths=(50.0,))
    load = load_of_shard(loaded, facts, Settings(packing="no"), 4, LengthWork(fixed=0.5, slope=0.5))
    assert load is not None and (load.padded, load.work) == (2.0, 3.0)


@pytest.mark.slow
def test_a_plan_of_short_samples_is_faster_and_needs_the_memory_of_the_longest():
    plans = [
        make_plan(choose("legal", {"rows": 100, "size": "tiny", **values})[0], CPU, FIXED)
        for values in ({}, {"row_tokens": 32})
    ]
    longest, short = plans
    assert short.time.predicted.update_seconds < longest.time.predicted.update_seconds / 2
    assert short.memory.allocated == longest.memory.allocated
    assert "the lengths of the samples are unknown" in " ".join(longest.facts.notes)
    assert short.facts.samples == {"train": 18_000, "validation": 2_250, "test": 2_250}
