"""The search over fake costs: the choice, and the few candidates that it evaluates."""

import pytest
import torch

import shoestring
from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.planning.gpus import divisor_reasons, search
from shoestring.planning.micro_batch import micro_batches
from shoestring.planning.search import collect_candidates
from tests.planning.fake_candidates import GIB, FakeCandidates, bytes_per_sample, default_seconds


def search_settings(candidates, requested=None):
    """The chosen settings, and how many candidates were evaluated."""
    best = search(candidates, requested or Settings())[0]
    return best.settings, len(candidates.evaluated)


def test_fitting_effective_batch_needs_four_evaluations():
    """One for each precision, and two for the time of smaller microbatches."""
    settings, evaluations = search_settings(FakeCandidates(bytes_of=bytes_per_sample(0.1)))
    assert (settings.micro_batch, settings.precision, settings.checkpointing) == (64, "fp16", "no")
    assert evaluations == 4


@pytest.mark.parametrize("seconds", [default_seconds, lambda settings: None])
def test_optimizer_kernel_depends_neither_on_time_nor_on_the_number_of_gpus(seconds):
    """Otherwise one process and two, which share the logical shards of an update, would end in different bits."""
    for values in ({}, {"gpus": 1, "logical_shards": 2}, {"gpus": 2, "logical_shards": 2}):
        candidates = FakeCandidates(
            bytes_of=bytes_per_sample(0.1), seconds=seconds, target=targets.find("kaggle-t4x2"), fused_optimizer=True
        )
        assert search_settings(candidates, Settings(**values))[0].optimizer_kernel == "fused"
        without = search_settings(candidates, Settings(**values, offload="optimizer"))[0]
        assert without.optimizer_kernel is None


@pytest.mark.parametrize("gib", [0.3, 0.5, 0.66, 0.9, 1.7, 5.0])
def test_largest_fitting_microbatch_needs_few_evaluations(gib):
    candidates = FakeCandidates(bytes_of=bytes_per_sample(gib))
    settings, _ = search_settings(candidates, Settings(precision="fp16", optimizer_kernel="foreach"))
    fitting = [size for size in micro_batches(64) if gib * size <= 14912 / 1024]
    assert settings.micro_batch == fitting[-1]
    assert len(candidates.evaluated) <= 5


def test_nonlinear_memory_does_not_mislead_the_search():
    """Up to 8 samples the peak is constant, and a prediction from below is too low."""
    candidates = FakeCandidates(bytes_of=lambda s: round(max(6.0, 0.55 * s.micro_batch + 1) * GIB))
    settings, _ = search_settings(candidates, Settings(precision="fp16"))
    assert settings.micro_batch == 22


def test_fitting_candidates_rank_before_faster_ones():
    candidates = FakeCandidates(bytes_of=bytes_per_sample(0.1), seconds=lambda s: 1.0 if s.precision == "fp32" else 1.1)
    assert search_settings(candidates)[0].precision == "fp32"
    candidates = FakeCandidates(bytes_of=lambda s: GIB if s.precision == "fp32" and s.micro_batch == 1 else 99 * GIB)
    settings, _ = search_settings(candidates)
    assert (settings.precision, settings.micro_batch) == ("fp32", 1)


def test_fewest_sufficient_blocks_are_checkpointed():
    candidates = FakeCandidates(bytes_of=bytes_per_sample(24), blocks=8, effective_batch=1, weights=5 * GIB)
    settings, evaluations = search_settings(candidates, Settings(precision="fp16"))
    assert settings.checkpointing == "4"  # 24 GiB less 4/8 of nine tenths is 13.2
    assert evaluations == 3


def test_weights_that_exceed_the_memory_are_planned_with_the_least_memory():
    candidates = FakeCandidates(bytes_of=bytes_per_sample(1, floor=20), blocks=8, weights=20 * GIB)
    (only,) = search(candidates, Settings(precision="fp16"))
    assert (only.settings.micro_batch, only.settings.checkpointing, only.fits) == (1, "full", False)
    (only,) = search(candidates, Settings(precision="fp16", checkpointing="no", micro_batch=2))
    assert (only.settings.micro_batch, only.settings.checkpointing) == (2, "no")


def test_divided_weights_that_do_not_fit_with_every_block_checkpointed_are_traced_once():
    requested = Settings(precision="fp16", sharding="zero3", gpus=2)
    for gib, sizes in ((99, {1}), (2, {1, 32})):
        candidates = FakeCandidates(
            bytes_of=lambda s, gib=gib: round((gib + s.micro_batch / 10) * GIB),
            blocks=8,
            weights=20 * GIB,
            target=targets.find("kaggle-t4x2"),
        )
        (first, *_) = search(candidates, requested)
        assert first.fits == (gib == 2)
        assert {settings.micro_batch for settings in candidates.evaluated} >= sizes
        assert ("no" in {settings.checkpointing for settings in candidates.evaluated}) == first.fits


def test_cuda_graphs_disable_checkpointing():
    candidates = FakeCandidates(bytes_of=bytes_per_sample(24), blocks=8, effective_batch=1, weights=5 * GIB)
    settings, _ = search_settings(candidates, Settings(precision="fp16", compile="graphs"))
    assert settings.checkpointing == "no"
    assert all(evaluated.checkpointing == "no" for evaluated in candidates.evaluated)


def test_result_has_each_candidate_once_and_best_first():
    candidates = FakeCandidates(
        bytes_of=bytes_per_sample(0.3), seconds=lambda s: 1.0 + (s.precision == "fp32") + 1 / s.micro_batch
    )
    ranked = search(candidates, Settings())
    assert {candidate.settings for candidate in ranked} == set(candidates.evaluated)
    assert len(ranked) == len(candidates.evaluated)
    order = [
        (not candidate.fits, candidate.seconds if candidate.fits else candidate.memory.high_bytes)
        for candidate in ranked
    ]
    assert order == sorted(order)
    assert {candidate.fits for candidate in ranked} == {True, False}


def test_equal_candidates_stay_in_search_order():
    candidates = FakeCandidates(bytes_of=lambda s: GIB, seconds=lambda s: 1.0)
    ranked = search(candidates, Settings(precision="fp16"))
    assert [candidate.settings.micro_batch for candidate in ranked] == [64, 1, 32]


def test_earlier_searches_do_not_change_the_result():
    fresh, used = (
        FakeCandidates(bytes_of=bytes_per_sample(24), blocks=8, effective_batch=4, weights=5 * GIB) for _ in range(2)
    )
    search(used, Settings(precision="fp32", micro_batch=3))
    assert [candidate.settings for candidate in search(used, Settings())] == [
        candidate.settings for candidate in search(fresh, Settings())
    ]


def test_impossible_settings_raise_the_error_of_the_requested_ones():
    def bytes_of(settings):
        raise UsageError(f"{settings.precision} with {settings.micro_batch}")

    assert collect_candidates(FakeCandidates(bytes_of=bytes_of), Settings()) == []
    with pytest.raises(UsageError, match="fp16 with 1"):
        search(FakeCandidates(bytes_of=bytes_of), Settings())
    with pytest.raises(UsageError, match="fp32 with 7"):
        search(FakeCandidates(bytes_of=bytes_of), Settings(precision="fp32", micro_batch=7))


@pytest.mark.parametrize(
    ("divisor", "effective_batch", "size"), [(2, 64, 64), (2, 36, 18), (4, 64, 64), (8, 24, 8), (1, 64, 64)]
)
def test_microbatches_that_the_recipe_fails_with_are_left_out(divisor, effective_batch, size):
    """As with timm's Mixup, which asserts that a batch is even; here one sample more than `size` does not fit."""

    def bytes_of(settings):
        if settings.micro_batch % divisor:
            raise TraceError("AssertionError at mixup.py:218 in __call__: Batch size should be even when using this")
        return bytes_per_sample(14 / size)(settings)

    candidates = FakeCandidates(bytes_of=bytes_of, effective_batch=effective_batch)
    ranked = search(candidates, Settings(precision="fp16", checkpointing="no"))
    assert ranked[0].settings.micro_batch == size and (candidates.divisor > 1) == (divisor > 1)
    (reason,) = divisor_reasons(candidates) if divisor > 1 else ["Batch size should be even"]
    assert "Batch size should be even" in reason


@pytest.mark.parametrize(
    ("message", "evaluated"), [("AssertionError: never", {64, 1, 2, 4, 8}), ("aten::x depends on values", {64})]
)
def test_a_recipe_that_fails_with_all_microbatches_is_an_error(message, evaluated):
    def bytes_of(settings):
        raise TraceError(message)

    candidates = FakeCandidates(bytes_of=bytes_of)
    with pytest.raises(TraceError, match=message):
        search(candidates, Settings())
    assert set(candidates.refused) <= evaluated


def test_cuda_graphs_without_a_gpu_are_refused():
    candidates = FakeCandidates(bytes_of=bytes_per_sample(1), target=targets.find("cpu"))
    with pytest.raises(UsageError, match="CUDA graphs need a GPU, and"):
        search_settings(candidates, Settings(compile="graphs"))


def test_blocks_are_not_checkpointed_for_a_small_gain():
    candidates = FakeCandidates(bytes_of=bytes_per_sample(0.5), blocks=8)
    settings, _ = search_settings(candidates, Settings(precision="fp16"))
    assert settings.checkpointing == "no"
    assert not any(evaluated.checkpointing == "full" for evaluated in candidates.evaluated)


def test_requested_settings_stay_even_if_they_do_not_fit():
    too_large = FakeCandidates(bytes_of=lambda s: 99 * GIB + s.micro_batch)
    assert search_settings(too_large)[0].micro_batch == 1  # the nearest to fitting
    requested = Settings(precision="fp32", micro_batch=48, checkpointing="no")
    candidates = FakeCandidates(bytes_of=lambda s: 99 * GIB)
    settings, evaluations = search_settings(candidates, requested)
    assert (settings, evaluations) == (
        requested.replace(gpus=1, logical_shards=1, sharding="ddp", memory_format="contiguous"),
        1,
    )
    small = FakeCandidates(bytes_of=bytes_per_sample(0.1))
    assert search_settings(small, Settings(micro_batch=1000))[0].micro_batch == 64


def test_batch_norm_needs_microbatches_of_two():
    candidates = FakeCandidates(bytes_of=lambda s: 99 * GIB, batch_norm=True)
    search_settings(candidates)
    assert min(settings.micro_batch for settings in candidates.evaluated) == 2


def test_model_without_blocks_is_planned_without_checkpointing():
    def bytes_of(settings):
        if settings.checkpointing != "no":
            raise UsageError("no blocks")
        return 99 * GIB

    assert search_settings(FakeCandidates(bytes_of=bytes_of, blocks=8))[0].checkpointing == "no"


def test_device_without_known_rates_is_planned_by_memory():
    settings, _ = search_settings(FakeCandidates(bytes_of=bytes_per_sample(0.5), seconds=lambda s: None))
    assert settings.micro_batch == 22


@pytest.mark.parametrize(("name", "precisions"), [("t4", {"fp32", "fp16"}), ("l4", {"fp32", "bf16"})])
def test_only_promising_precisions_are_evaluated(name, precisions):
    candidates = FakeCandidates(bytes_of=bytes_per_sample(0.1), target=targets.find(name))
    search_settings(candidates)
    assert {settings.precision for settings in candidates.evaluated} == precisions


class Even:
    """Refuses odd batches in its own code, as timm's Mixup does."""

    epochs, effective_batch = 1, 6

    def model(self):
        return torch.nn.Linear(1 << 14, 1 << 12)

    def batch(self, size):
        return torch.zeros(size, 1 << 14)

    def loss(self, model, batch):
        assert len(batch) % 2 == 0, "Batch size should be even when using this"
        return model(batch).mean()

    def data(self):
        return [torch.zeros(1 << 14)] * 12


def test_a_trace_of_the_recipe_decides_which_microbatches_it_takes():
    plan = shoestring.plan(Even(), on="kaggle-t4", precision="fp32", checkpointing="no")
    assert plan.settings.micro_batch % 2 == 0 and 6 % plan.settings.micro_batch in (0, 2)
    assert any(
        "every microbatch is even" in reason and "Batch size should be even" in reason for reason in plan.reasons
    )
