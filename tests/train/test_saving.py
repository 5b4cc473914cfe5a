import errno
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shoestring.checkpoint.store import Store
from shoestring.engine.precision import mixed_precision
from shoestring.engine.state import TrainingState
from shoestring.errors import CheckpointError, RunError
from shoestring.session.deadline import Deadline
from shoestring.settings import Settings
from shoestring.train import saving
from shoestring.train.interval import SavePolicy
from shoestring.train.saving import Saver


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


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
        mixed_precision=mixed_precision("fp32", torch.device("cpu")),
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
    saver = Saver(store, Settings(), told, deadline, {}, not_finite=not_finite)
    yield SimpleNamespace(
        saver=saver, store=store, told=told, gate=gate, deadline=deadline, begun=begun,
        slow=lambda: monkeypatch.setattr(store, "write", waiting),
    )  # fmt: skip
    gate.set()
    saver.__exit__(None, None, None)


def not_finite(update, what, value):
    return RunError(f"the {what} of update {update} is {value}")


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


def test_its_thread_has_no_others_of_openmp_beside_those_of_training(tmp_path, state):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        deadline, threads = Deadline(None), []
        store = Store(tmp_path)
        write = store.write

        def counted(update, copy):
            threads.append(torch.get_num_threads())
            return write(update, copy)

        store.write = counted
        with Saver(store, Settings(), Told(), deadline, {}, not_finite=not_finite) as saver:
            saver.begin(state)
        assert (threads, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_a_save_that_stopping_would_wait_for_is_there_before_training_goes_on(tmp_path, state):
    clock, told = Clock(), Told()
    deadline = Deadline(100.0, margin_seconds=5.0, clock=clock)
    with Saver(Store(tmp_path), Settings(), told, deadline, {}, not_finite=not_finite) as saver:
        saver._slowest = 20.0
        deadline.observe("save", 20.0)
        saver.begin(state)
        assert told.saves == []
        change(state)
        clock.now = 60.0  # 40 left, of which stopping takes 25 and another save 20
        saver.begin(state)
        assert [update for update, *_ in told.saves] == [0, 1]


def test_no_update_begins_that_a_kill_would_take_with_more_than_the_interval(tmp_path, state, slow):
    """The gate opens a little later: `begin` and `due` return only then."""
    slow.saver._policy = SavePolicy(Settings(save_every_updates=2))
    slow.slow()
    state.update = 1
    slow.saver.begin(state)
    assert not slow.saver.due(1)
    assert slow.told.saves == []
    threading.Timer(0.05, slow.gate.set).start()
    slow.saver.due(2)
    assert [update for update, *_ in slow.told.saves] == [1]
    slow.gate.clear()
    change(state)
    change(state)
    threading.Timer(0.05, slow.gate.set).start()
    slow.saver.begin(state)
    assert [update for update, *_ in slow.told.saves] == [1, 3]


@pytest.mark.parametrize("learn", ["due", "begin", "save", "newest", "__exit__"])
def test_weights_that_are_not_finite_are_never_saved_and_end_the_run_whoever_learns_of_it(slow, state, learn):
    slow.saver.save(state)
    change(state)
    with torch.no_grad():
        state.model.weight[0, 0] = float("nan")
    slow.saver.begin(state)
    slow.saver._under_way.written.result(30)
    with torch.no_grad():
        state.model.weight[0, 0] = 0.0  # whatever training does meanwhile
    change(state)
    arguments = {"due": (2,), "begin": (state,), "save": (state,), "newest": (), "__exit__": (None, None, None)}
    with pytest.raises(RunError, match="the largest weight of update 1 is nan"):
        getattr(slow.saver, learn)(*arguments[learn])
    assert slow.store.updates() == [0]


def test_nor_by_who_waits_for_the_save(slow, state):
    slow.saver.save(state)
    change(state)
    with torch.no_grad():
        state.model.bias[0] = float("inf")
    with pytest.raises(RunError, match="the largest weight of update 1 is nan"):
        slow.saver.save(state)
    state.model.requires_grad_(False)  # what is not trained may hold anything
    slow.saver.save(state)
    assert slow.store.updates() == [0, 1]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_runs_out_while_writing_is_a_save_that_failed(slow, state, monkeypatch, error):
    slow.saver.save(state)
    change(state)

    def out_of_memory(*_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("shoestring.checkpoint.store.pieces", out_of_memory)
        slow.saver.begin(state)
        slow.saver._under_way.written.exception(30)
        assert not slow.saver.due(1)
        ((update, why),) = slow.told.unsaid
        assert update == 1 and "no memory to write a checkpoint" in why
        assert [path.name for path in slow.store.root.iterdir()] == ["update-00000000"]
    slow.saver.begin(state)
    slow.saver.newest()
    assert slow.store.load().update == 1


def test_memory_for_copies_is_there_before_the_first_save(slow, state, monkeypatch):
    began = []
    reserve = saving.HostCopy._reserve
    monkeypatch.setattr(
        saving.HostCopy, "_reserve", lambda self, size, *, lock: (began.append(size), reserve(self, size, lock=lock))
    )
    assert not slow.saver.restore(state, allow_inexact=False)
    slow.saver.due(1)
    slow.saver._prepared.result()
    memory = slow.saver._copy._memory.data_ptr()
    slow.gate.set()
    slow.saver.begin(state)
    assert slow.saver._copy._memory.data_ptr() == memory and len(set(began)) == 1 < len(began)
