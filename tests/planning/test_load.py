from dataclasses import replace

import pytest

from shoestring.base.settings import Settings
from shoestring.planning.load import load_of_shard, rows_per_shard
from shoestring.recipe.finding import choose
from tests.planning.estimate.example_traces import FACTS

LENGTHS = tuple(float(length) for length in range(10, 110, 10))


def loaded(**values):
    return choose("finetune", {"seq_len": 100, "effective_batch": 16, **values})[0]


@pytest.mark.parametrize("micro_batch", [1, 4, 16])
def test_padding_grows_with_the_microbatch(micro_batch):
    facts = replace(FACTS, sample_lengths=LENGTHS)
    load = load_of_shard(loaded(), facts, Settings(packing="no"), micro_batch)
    assert load is not None
    assert load.microbatches == 16 / micro_batch
    # The mean length is 55 of 100; alone, samples have no padding.
    assert (load.padding == 0) == (micro_batch == 1)
    assert load.padded * (1 - load.padding) == pytest.approx(16 * 0.55, rel=0.1)


def test_packed_rows_are_fewer_and_fuller():
    facts, packed = replace(FACTS, sample_lengths=LENGTHS), Settings(packing="yes")
    rows = rows_per_shard(loaded(), facts, packed)
    assert 9 <= rows < 16
    assert rows_per_shard(loaded(), facts, Settings(packing="no")) == 16
    at_once = [load_of_shard(loaded(), facts, settings, 4) for settings in (packed, Settings(packing="no"))]
    assert at_once[0].microbatches < at_once[1].microbatches
    assert at_once[0].padding < at_once[1].padding


def test_longer_samples_are_cut_and_other_recipes_have_no_load():
    facts = replace(FACTS, sample_lengths=(500.0, 500.0))
    load = load_of_shard(loaded(), facts, Settings(packing="no"), 2)
    assert (load.padded, load.padding) == (16, 0)
    other, _ = choose("temporal", {})
    assert load_of_shard(other, facts, Settings(), 2) is None
    assert rows_per_shard(other, facts, Settings(packing="yes")) == other.effective_batch
