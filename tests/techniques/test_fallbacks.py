"""The table of what becomes smaller when memory runs out, which the engine follows and a plan prints."""

from dataclasses import replace

import pytest

from shoestring.settings import Settings
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

LIMITS = Limits(least_micro_batch=2, blocks=3, batched_step=True)


@pytest.mark.parametrize(
    ("size", "least", "smaller"), [(9, 1, 5), (5, 1, 3), (2, 1, 1), (1, 1, 1), (3, 2, 2), (2, 2, 2), (1, 2, 1)]
)
def test_halving_rounds_up_and_stops_at_the_least(size, least, smaller):
    assert halved(size, least) == smaller


def followed(phase, sizes):
    """What `next_step` gives until nothing is left."""
    while step := next_step(phase, sizes, LIMITS):
        yield step
        sizes = step.sizes


def test_each_phase_follows_its_row_of_the_table_to_the_end():
    sizes = Sizes.of(Settings(micro_batch=8))
    for phase, fallbacks in FALLBACKS.items():
        steps = list(followed(phase, sizes))
        assert list(dict.fromkeys(step.fallback for step in steps)) == list(fallbacks)
        assert steps[-1].sizes.micro_batch == 2


def test_a_plan_prints_what_the_table_has(monkeypatch):
    settings = Settings(micro_batch=8, checkpointing="no", optimizer_kernel="fused")
    assert descriptions(settings, LIMITS)[:-1] == [
        "micro_batch 4, 2",
        "activations of all 3 blocks computed again in backward",
        "in the optimizer's step: one tensor after another",
    ]
    assert (
        len(descriptions(settings.replace(micro_batch=2, checkpointing="full", optimizer_kernel="for-loop"), LIMITS))
        == 1
    )
    monkeypatch.setitem(FALLBACKS, "update", (RECOMPUTE_BLOCKS, SMALLER_MICRO_BATCH))
    steps = list(followed("update", Sizes.of(settings)))
    assert steps[0].sizes.checkpointing == "full"


SIZES = Sizes.of(Settings(micro_batch=8))


def test_what_was_learnt_goes_on_under_the_same_settings():
    learnt = {**SIZES.json(), "micro_batch": 2, "evaluation_batch": 4, "checkpointing": "full"}
    sizes = SIZES.resumed(learnt)
    assert (sizes.micro_batch, sizes.evaluation_batch, sizes.checkpointing) == (2, 4, "full")


@pytest.mark.parametrize(
    "saved",
    [
        None,
        3,
        {},
        {**SIZES.json(), "micro_batch": 16},
        {**SIZES.json(), "micro_batch": 0},
        {**SIZES.json(), "micro_batch": "2", "evaluation_batch": [1]},
        {**Sizes.of(Settings(micro_batch=4)).json()},
    ],
)
def test_it_is_never_raised_and_what_makes_no_sense_is_left_out(saved):
    assert SIZES.resumed(saved) == SIZES


def test_an_evaluation_s_batch_does_not_grow_when_an_older_checkpoint_is_restored():
    inforce = replace(SIZES, evaluation_batch=2)
    assert inforce.resumed({**SIZES.json(), "evaluation_batch": 4}).evaluation_batch == 2
    assert inforce.resumed(SIZES.json()).evaluation_batch == 2
