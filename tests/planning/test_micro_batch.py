"""Microbatches of an effective batch, and the search for the largest that fits."""

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.planning.micro_batch import find_largest_that_fits, micro_batches, predict_bytes
from tests.planning.fake_candidates import GIB, FakeCandidates, bytes_per_sample

REQUESTED = Settings(precision="fp16", checkpointing="no")


def test_microbatches_are_as_equal_as_possible():
    assert micro_batches(9) == [1, 2, 3, 5, 9]
    assert micro_batches(9, least=2) == [2, 3, 5, 9]
    assert micro_batches(1, least=2) == [1]
    assert micro_batches(64)[-4:] == [16, 22, 32, 64]


def sizes_of(series):
    return [candidate.settings.micro_batch for candidate in series.candidates]


def test_heavy_model_is_traced_from_its_smallest_microbatch():
    light, heavy = (FakeCandidates(bytes_of=bytes_per_sample(0.5), weights=weights) for weights in (GIB, 5 * GIB))
    assert sizes_of(find_largest_that_fits(light, REQUESTED, micro_batches(64))) == [64, 22]
    assert sizes_of(find_largest_that_fits(heavy, REQUESTED, micro_batches(64))) == [1, 22]


def test_series_includes_candidates_that_do_not_fit():
    series = find_largest_that_fits(FakeCandidates(bytes_of=lambda s: 99 * GIB), REQUESTED, [1, 2, 4])
    assert series.largest is None
    assert sizes_of(series) == [4, 1]


def test_impossible_settings_end_the_series():
    def bytes_of(settings):
        if settings.micro_batch == 22:
            raise UsageError("22 are not possible")
        return bytes_per_sample(0.5)(settings)

    for weights, first in ((GIB, 64), (5 * GIB, 1)):
        candidates = FakeCandidates(bytes_of=bytes_of, weights=weights)
        series = find_largest_that_fits(candidates, REQUESTED, micro_batches(64))
        assert series.largest is None  # though 1 fits
        assert sizes_of(series) == [first]


def test_the_first_size_takes_little_time_to_load():
    candidates = FakeCandidates(bytes_of=bytes_per_sample(1 / 1024), effective_batch=1024)
    assert sizes_of(find_largest_that_fits(candidates, REQUESTED, micro_batches(1024))) == [64, 1024]


class ReleasingCandidates(FakeCandidates):
    """Candidates that would reserve a quarter more than they need, and fit by releasing that."""

    def evaluate(self, settings):
        candidate = super().evaluate(settings)
        needed, capacity = candidate.memory.peak_bytes, self.target.device.memory_bytes
        unlimited = needed * 1.25
        candidate.memory.high_bytes = min(unlimited, capacity) if candidate.fits else unlimited
        return candidate


def test_search_goes_on_where_only_the_high_end_exceeds_the_capacity():
    candidates = ReleasingCandidates(bytes_of=bytes_per_sample(1), effective_batch=1024)
    series = find_largest_that_fits(candidates, REQUESTED, micro_batches(1024))
    assert sizes_of(series) == [64, 1, 11, 13, 14]
    assert series.largest.settings.micro_batch == 14  # of 14.56 GiB


def test_memory_is_predicted_from_the_nearest_candidates():
    candidates = FakeCandidates(bytes_of=lambda s: (4 + s.micro_batch if s.micro_batch < 10 else 99) * GIB)
    two, four, whole = (candidates.evaluate(REQUESTED.replace(micro_batch=size)) for size in (2, 4, 64))
    assert predict_bytes(3, [whole, four, two]) == pytest.approx(7 * GIB)
    assert predict_bytes(8, [two]) == pytest.approx(4 * 6 * GIB)  # all of it is activations
