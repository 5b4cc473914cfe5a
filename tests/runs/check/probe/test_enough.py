"""When a probe has measured enough."""

import pytest

from shoestring.runs.check.probe.enough import Budget

BUDGET = Budget(30.0, started=100.0)


@pytest.mark.parametrize(
    ("durations", "now", "expected"),
    [
        ([0.1] * 10, 103.0, False),
        ([0.1] * 11, 103.0, True),
        ([4.0, 4.0], 110.0, False),
        ([4.0, 4.0, 4.0], 114.0, True),  # more than a third of the budget
        ([2.0, 2.0, 2.0], 110.0, False),
        ([9.0], 120.0, False),  # the first one says little about the second
        ([9.0], 128.0, True),
        ([9.0, 5.0], 123.0, True),  # another one would end after 128 s
        ([9.0, 3.0], 123.0, False),
    ],
)
def test_updates_are_made_while_they_are_useful_and_end_in_time(durations, now, expected):
    assert BUDGET.has_updates(durations, now) is expected


def test_each_stage_of_a_loss_is_tried_twice():
    assert not BUDGET.has_updates([4.0] * 5, 122.0, least=6)
    assert BUDGET.has_updates([4.0] * 6, 122.5, least=6)


@pytest.mark.parametrize(
    ("durations", "now", "expected"),
    [
        ([0.1] * 9, 110.0, False),
        ([1.1] * 3, 110.0, True),
        ([2.0], 110.0, False),
        ([2.0], 125.5, True),
    ],
)
def test_cheap_evaluations_are_completed(durations, now, expected):
    assert BUDGET.has_evaluation(durations, now) is expected
