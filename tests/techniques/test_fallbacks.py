"""The table of fallbacks on out-of-memory, which the engine executes and a plan prints."""

from dataclasses import replace

import pytest

from shoestring.base.settings import Settings
from shoestring.techniques.fallbacks import (
    FALLBACKS,
    RECOMPUTE_BLOCKS,
    SMALLER_MICRO_BATCH,
    Limits,
    Sizes,
    descriptions,
    halved,
    next_step,
)  # fmt: skip

LIMITS = Limits(least_micro_batch=2, blocks=3, batched_step=True, streamable=3, sharing=4)


@pytest.mark.parametrize(
    ("size", "least", "smaller"), [(9, 1, 5), (5, 1, 3), (2, 1, 1), (1, 1, 1), (3, 2, 2), (2, 2, 2), (1, 2, 1)]
)
def test_halving_rounds_up_and_stops_at_the_minimum(size, least, smaller):
    assert halved(size, least) == smaller


def all_steps(phase, sizes):
    """Yield the results of `next_step` until no fallback is left."""
    while step := next_step(phase, sizes, LIMITS):
        yield step
        sizes = step.sizes


def test_each_phase_applies_its_fallbacks_in_order():
    sizes = Sizes.from_settings(Settings(micro_batch=8, streamed_blocks=1))
    for phase, fallbacks in FALLBACKS.items():
        steps = list(all_steps(phase, sizes))
        assert list(dict.fromkeys(step.fallback for step in steps)) == list(fallbacks)
        assert steps[-1].sizes.micro_batch == 2


def test_descriptions_list_the_fallbacks(monkeypatch):
    settings = Settings(micro_batch=8, checkpointing="no", optimizer_kernel="fused")
    limits = replace(LIMITS, sharing=0)
    assert descriptions(settings, limits)[:-1] == [
        "micro_batch is reduced to 4, 2",
        "the activations of all 3 blocks are recomputed in backward",
        "if the optimizer step runs out of memory, the optimizer updates one tensor at a time",
    ]
    assert descriptions(settings.replace(streamed_blocks=1), replace(LIMITS, sharing=5))[:3] == [
        "2, 3 of 3 blocks are streamed",
        "micro_batch is reduced to 4, 2",
        "each copy of a streamed block is used by 3, 2, 1 microbatches",
    ]
    assert (
        len(descriptions(settings.replace(micro_batch=2, checkpointing="full", optimizer_kernel="for-loop"), limits))
        == 1
    )
    monkeypatch.setitem(FALLBACKS, "update", (RECOMPUTE_BLOCKS, SMALLER_MICRO_BATCH))
    steps = list(all_steps("update", Sizes.from_settings(settings)))
    assert steps[0].sizes.checkpointing == "full"


SIZES = Sizes.from_settings(Settings(micro_batch=8))


def test_saved_sizes_are_restored_under_the_same_settings():
    saved = {**SIZES.json(), "micro_batch": 2, "evaluation_batch": 4, "checkpointing": "full", "stream_group": 3}
    sizes = SIZES.resumed(saved)
    assert (sizes.micro_batch, sizes.evaluation_batch, sizes.checkpointing) == (2, 4, "full")
    assert (sizes.stream_group, replace(SIZES, stream_group=2).resumed(saved).stream_group) == (3, 2)


@pytest.mark.parametrize(
    "saved",
    [
        None,
        3,
        {},
        {**SIZES.json(), "micro_batch": 16},
        {**SIZES.json(), "micro_batch": 0},
        {**SIZES.json(), "micro_batch": "2", "evaluation_batch": [1]},
        {**Sizes.from_settings(Settings(micro_batch=4)).json()},
    ],
)
def test_larger_and_invalid_saved_sizes_are_ignored(saved):
    assert SIZES.resumed(saved) == SIZES


def test_older_checkpoint_does_not_enlarge_the_evaluation_batch():
    current = replace(SIZES, evaluation_batch=2)
    assert current.resumed({**SIZES.json(), "evaluation_batch": 4}).evaluation_batch == 2
    assert current.resumed(SIZES.json()).evaluation_batch == 2
