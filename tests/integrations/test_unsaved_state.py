"""What a script's own code changes while it trains, and no checkpoint contains, is named."""

import functools
from types import SimpleNamespace

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback

from shoestring.integrations.unsaved_state import UnsavedState

COUNTS = {"calls": 0}
total = 0


def counts_globally(**_):
    global total
    total += 1


def counts_in_a_mapping(**_):
    COUNTS["calls"] += 1


def counts_in_a_default(seen=[]):  # noqa: B006
    seen.append(1)


def counts_in_an_attribute(**_):
    counts_in_an_attribute.calls = getattr(counts_in_an_attribute, "calls", 0) + 1


counts_in_an_attribute.calls = 0


class Counting:
    calls = 0

    def __call__(self, **_):
        Counting.calls += 1

    def method(self, **_):
        self.latest = self.latest + 1

    latest = 0


def unsaved(*rewards, callbacks=()):
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=list(callbacks)), reward_funcs=list(rewards))
    return UnsavedState(trainer)


@pytest.mark.parametrize(
    ("reward", "name"),
    [
        (counts_globally, "total of the reward function counts_globally (0, now 2)"),
        (counts_in_a_mapping, "COUNTS of the reward function counts_in_a_mapping (1 items, now 1 items)"),
        (counts_in_a_default, "seen of the reward function counts_in_a_default (0 items, now 2 items)"),
        (counts_in_an_attribute, "calls of the reward function counts_in_an_attribute (0, now 2)"),
        (functools.partial(counts_globally, weight=1), "total of the reward function partial (3, now 5)"),
        (Counting(), "calls of the reward function Counting (0, now 2)"),
        (Counting().method, "latest of the reward function method (0, now 2)"),
        (lambda **_: None, None),
    ],
)
def test_state_of_a_function(reward, name):
    state = unsaved(reward)
    assert state.changes() == []
    for _ in range(2):
        reward()
    assert state.changes() == ([name] if name else [])
    reward()
    assert state.changes() == []  # each is named once


def test_saved_attributes_and_objects_of_libraries_are_left_out():
    class Patient(EarlyStoppingCallback):
        rounds = 0

    library, own = EarlyStoppingCallback(3), Patient(3)
    state = unsaved(callbacks=[library, own, TrainerCallback()])
    for callback in (library, own):
        callback.early_stopping_patience_counter += 1
        callback.rounds = 1
    assert state.changes() == ["rounds of the callback Patient (0, now 1)"]
