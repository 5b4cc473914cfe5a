import errno
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shoestring.checkpoint.store import Store
from shoestring.errors import CheckpointError
from shoestring.session.deadline import Deadline
from shoestring.settings import Settings
from shoestring.train import saving
from shoestring.train.precision import arithmetic
from shoestring.train.saving import SavePolicy, Saver
from shoestring.train.state import TrainingState


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def due_at(policy, clock, until, cost, seconds):
    times = []
    while clock.now < until:
        clock.now += 1
        if policy.due(update=1):
            times.append(clock.now)
            policy.began()
            clock.now += seconds
            policy.saved(cost=cost, seconds=seconds)
    return times


@pytest.mark.parametrize(("cost", "seconds", "between"), [(1, 0, 50), (0.2, 3, 10), (1, 2, 50), (60, 100, 500)])
def test_saving_costs_at_most_two_per_cent_and_a_kill_at_most_ten_minutes(cost, seconds, between):
    clock = Clock()
    policy = SavePolicy(Settings(), clock)
    policy.saved(cost=cost, seconds=seconds)
    first, second = due_at(policy, clock, 2500, cost, seconds)[:2]
    assert second - first == between
    assert between + seconds <= 600


def test_none_begins_before_the_last_has_ended():
    clock = Clock()
    policy = SavePolicy(Settings(), clock)
    policy.saved(cost=30, seconds=450)
    first, second = due_at(policy, clock, 3000, 30, 450)[:2]
    assert second - first >= 450


def test_seconds_that_are_set_hold_whatever_a_save_costs():
    clock = Clock()
    policy = SavePolicy(Settings(save_every_seconds=30.0), clock)
    assert due_at(policy, clock, 90, cost=5, seconds=5) == [30, 60, 90]


def test_updates_that_are_set_come_on_top():
    policy = SavePolicy(Settings(save_every_updates=4), Clock())
    assert [update for update in range(1, 13) if policy.due(update)] == [4, 8, 12]


def test_what_could_not_be_written_is_tried_again_more_and_more_seldom():
    clock = Clock()
    policy = SavePolicy(Settings(save_every_seconds=1.0), clock)
    times = []
    while clock.now < 100:
        clock.now += 1
        if policy.due(1):
            times.append(clock.now)
            policy.began()
            policy.failed()
    assert times == [1, 11, 31, 71]
    policy.saved(cost=0, seconds=0)
    policy.failed()
    clock.now += 10
    assert policy.due(1)


class Told:
    """A record that keeps what it is told."""

    def __init__(self):
        self.saves, self.unsaid = [], []

    def saved(self, saved, *, stall_seconds):
        self.saves.append((saved.update, saved.seconds, stall_seconds))

    def unsaved(self, update, what, why):
        self.unsaid.append((update, why))


@pytest.fixture
def state():
    model = nn.Linear(4, 4)
    return TrainingState(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        arithmetic=arithmetic("fp32", torch.device("cpu")),
        learning_rates=[1e-3],
    )


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """A saver whose writing does not begin before the gate opens."""
    store, told, gate, begun = Store(tmp_path / "checkpoints"), Told(), threading.Event(), threading.Event()
    write = store.write

    def waiting(update, copy):
        begun.set()
        assert gate.wait(30)
        return write(update, copy)

    deadline = Deadline(None)
    saver = Saver(store, Settings(save_every_updates=1), told, deadline, {})
    yield SimpleNamespace(
        saver=saver, store=store, told=told, gate=gate, deadline=deadline, begun=begun,
        slow=lambda: monkeypatch.setattr(store, "write", waiting),
    )  # fmt: skip
    gate.set()
    saver.__exit__(None, None, None)


def change(state):
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter += 1
    state.history.append({"epoch": 1})
    state.update += 1


def test_what_is_saved_is_the_state_as_it_was_whatever_training_does_meanwhile(slow, state):
    slow.slow()
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    state.update = 3
    slow.saver.begin(state)
    assert slow.begun.wait(30)
    change(state)
    assert slow.told.saves == []
    slow.gate.set()
    slow.saver.__exit__(None, None, None)
    saved = slow.store.load()
    assert saved.update == 3
    assert saved.state["progress"]["history"] == []
    assert all(torch.equal(saved.state["model"][name], value) for name, value in before.items())
    ((update, seconds, stall),) = slow.told.saves
    assert update == 3
    assert 0 < stall <= seconds or stall > 0
    assert slow.deadline.stopping_seconds() >= seconds


def test_a_second_save_waits_for_the_first_and_uses_its_memory_again(slow, state):
    slow.slow()
    slow.saver.begin(state)
    memory = slow.saver._copy._memory.data_ptr()
    change(state)
    threading.Timer(0.05, slow.gate.set).start()
    slow.saver.begin(state)
    assert [update for update, *_ in slow.told.saves] == [0]
    assert slow.saver._copy._memory.data_ptr() == memory
    slow.saver.__exit__(None, None, None)
    assert slow.store.updates() == [0, 1]
    assert torch.equal(slow.store.load().state["model"]["weight"], state.model.weight)


def test_the_copy_is_at_most_a_tenth_more_than_the_state(slow, state):
    state.model = nn.Linear(300, 300)
    slow.saver.begin(state)
    size = sum(value.nbytes for value in state.model.state_dict().values())
    assert size <= slow.saver._copy._memory.nbytes <= 1.1 * size


def test_a_save_that_cannot_be_written_is_told_of_and_training_goes_on(slow, state, monkeypatch):
    slow.saver.save(state)
    change(state)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shoestring.checkpoint.store.write_file", full)
        slow.saver.begin(state)
        slow.saver._under_way.written.exception(30)
        assert not slow.saver.due(1)  # not again at once
        ((update, why),) = slow.told.unsaid
        assert update == 1
        assert "No space left" in why
        assert "update-00000000" in why
        # The last one of a session has to be there.
        with pytest.raises(CheckpointError, match="No space left") as caught:
            slow.saver.save(state)
        assert "update-00000000" in caught.value.hint
    slow.saver.save(state)
    assert slow.store.load().update == 1


def test_what_was_saved_is_not_saved_again(slow, state):
    slow.saver.begin(state)
    slow.saver.save(state)
    slow.saver.begin(state)
    assert len(slow.told.saves) == 1


def test_no_save_begins_that_stopping_would_wait_for(tmp_path, state):
    clock = Clock()
    deadline = Deadline(100.0, margin_seconds=5.0, clock=clock)
    saver = Saver(Store(tmp_path), Settings(save_every_updates=1), Told(), deadline, {})
    with saver:
        saver.save(state)
        saver._slowest = 20.0
        deadline.observe("save", 20.0)
        assert saver.due(1)
        clock.now = 60.0  # 40 left, of which stopping takes 25 and another save 20
        assert not saver.due(1)


def test_memory_for_copies_is_there_before_the_first_save(slow, state, monkeypatch):
    began = []
    reserve = saving.HostCopy._reserve
    monkeypatch.setattr(
        saving.HostCopy, "_reserve", lambda self, size, *, lock: (began.append(size), reserve(self, size, lock=lock))
    )
    assert not slow.saver.restore(state, allow_inexact=False)
    assert slow.saver.due(1)
    slow.saver._prepared.result()
    memory = slow.saver._copy._memory.data_ptr()
    slow.gate.set()
    slow.saver.begin(state)
    assert slow.saver._copy._memory.data_ptr() == memory and len(set(began)) == 1 < len(began)
