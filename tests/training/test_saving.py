import errno
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shoestring.base.errors import CheckpointError, RunError
from shoestring.base.settings import Settings
from shoestring.training import saving
from shoestring.training.checkpoint.manifest import read_manifest
from shoestring.training.checkpoint.sections import read_sections
from shoestring.training.checkpoint.store import Store
from shoestring.training.engine.averaging import AveragedWeights
from shoestring.training.engine.memory import NoMemoryError
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.state import TrainingState
from shoestring.training.save_policy import SavePolicy
from shoestring.training.saving import Saver
from shoestring.training.session.deadline import Deadline
from tests.sessions import session


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class FakeRecord:
    """Stores the recorded saves and failures."""

    def __init__(self):
        self.saves, self.failures = [], []

    def saved(self, saved, *, stall_seconds):
        self.saves.append((saved.update, saved.seconds, stall_seconds))

    def unsaved(self, update, kind, reason):
        self.failures.append((update, reason))


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
    """A saver that, after `slow.slow()`, waits with writing until the gate is open."""
    store, record = Store(tmp_path / "checkpoints"), FakeRecord()
    gate, started = threading.Event(), threading.Event()
    write = store.write

    def write_when_open(update, copy, **retained):
        started.set()
        assert gate.wait(30)
        return write(update, copy)

    deadline = Deadline(None)
    saver = Saver(store, Settings(), record, deadline, {}, non_finite_error=non_finite_error)
    yield SimpleNamespace(
        saver=saver, store=store, record=record, gate=gate, deadline=deadline, started=started,
        slow=lambda: monkeypatch.setattr(store, "write", write_when_open),
    )  # fmt: skip
    gate.set()
    saver.__exit__(None, None, None)


def non_finite_error(update, quantity, value):
    return RunError(f"the {quantity} of update {update} is {value}")


def change(state):
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter += 1
    state.history.append({"epoch": 1})
    state.update += 1


def test_save_contains_the_state_of_its_start(slow, state):
    slow.slow()
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    state.update = 3
    slow.saver.begin(state)
    assert slow.started.wait(30)
    change(state)
    assert slow.record.saves == []
    slow.gate.set()
    slow.saver.__exit__(None, None, None)
    saved = slow.store.load()
    assert saved.update == 3
    assert saved.state["progress"]["history"] == []
    assert all(torch.equal(saved.state["model"][name], value) for name, value in before.items())
    ((update, seconds, stall),) = slow.record.saves
    assert update == 3
    assert 0 < stall <= seconds or stall > 0
    assert slow.deadline.stopping_seconds() >= seconds


def test_second_save_waits_and_reuses_memory(slow, state):
    slow.slow()
    slow.saver.begin(state)
    memory = slow.saver._copy._memory.data_ptr()
    change(state)
    threading.Timer(0.05, slow.gate.set).start()
    slow.saver.begin(state)
    assert [update for update, *_ in slow.record.saves] == [0]
    assert slow.saver._copy._memory.data_ptr() == memory
    slow.saver.__exit__(None, None, None)
    assert slow.store.updates() == [0, 1]
    assert torch.equal(slow.store.load().state["model"]["weight"], state.model.weight)


def test_copy_is_at_most_a_tenth_larger(slow, state):
    state = replace(state, model=nn.Linear(300, 300))
    slow.saver.begin(state)
    size = sum(value.nbytes for value in state.model.state_dict().values())
    assert size <= slow.saver._copy._memory.nbytes <= 1.1 * size


def test_failed_save_is_recorded_and_training_continues(slow, state, monkeypatch):
    slow.saver.save(state)
    change(state)

    def raise_disk_full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shoestring.training.checkpoint.writing.write_file", raise_disk_full)
        slow.saver.begin(state)
        slow.saver._pending.written.exception(30)
        assert not slow.saver.due(1)  # not retried immediately
        ((update, reason),) = slow.record.failures
        assert update == 1
        assert "No space left" in reason
        assert "update-00000000" in reason
        # The last save of a session has to succeed.
        with pytest.raises(CheckpointError, match="No space left") as raised:
            slow.saver.save(state)
        assert "update-00000000" in raised.value.hint
    slow.saver.save(state)
    assert slow.store.load().update == 1


def test_saved_state_is_not_saved_again(slow, state):
    slow.saver.begin(state)
    slow.saver.save(state)
    slow.saver.begin(state)
    assert len(slow.record.saves) == 1


def test_saving_thread_has_no_openmp_threads(tmp_path, state):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        deadline, threads = Deadline(None), []
        store = Store(tmp_path)
        write = store.write

        def write_and_record_threads(update, copy, **retained):
            threads.append(torch.get_num_threads())
            return write(update, copy)

        store.write = write_and_record_threads
        with Saver(store, Settings(), FakeRecord(), deadline, {}, non_finite_error=non_finite_error) as saver:
            saver.begin(state)
        assert (threads, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_save_near_the_limit_is_waited_for(tmp_path, state):
    clock, record = Clock(), FakeRecord()
    deadline = Deadline(100.0, margin_seconds=5.0, clock=clock)
    with Saver(Store(tmp_path), Settings(), record, deadline, {}, non_finite_error=non_finite_error) as saver:
        saver._slowest_seconds = 20.0
        deadline.observe("save", 20.0)
        saver.begin(state)
        assert record.saves == []
        change(state)
        clock.now = 60.0  # 40 s are left, of which stopping takes 25 s and another save 20 s
        saver.begin(state)
        assert [update for update, *_ in record.saves] == [0, 1]


def test_update_waits_for_the_save_of_the_interval(tmp_path, state, slow):
    """`begin` and `due` return only after the gate is opened, a little later."""
    slow.saver._policy = SavePolicy(Settings(save_every_updates=2))
    slow.slow()
    state.update = 1
    slow.saver.begin(state)
    assert not slow.saver.due(1)
    assert slow.record.saves == []
    threading.Timer(0.05, slow.gate.set).start()
    slow.saver.due(2)
    assert [update for update, *_ in slow.record.saves] == [1]
    slow.gate.clear()
    change(state)
    change(state)
    threading.Timer(0.05, slow.gate.set).start()
    slow.saver.begin(state)
    assert [update for update, *_ in slow.record.saves] == [1, 3]


@pytest.mark.parametrize("call", ["due", "begin", "save", "newest", "__exit__"])
def test_non_finite_weights_are_not_saved_in_background(slow, state, call):
    slow.saver.save(state)
    change(state)
    with torch.no_grad():
        state.model.weight[0, 0] = float("nan")
    slow.saver.begin(state)
    slow.saver._pending.written.result(30)
    with torch.no_grad():
        state.model.weight[0, 0] = 0.0  # training continues meanwhile
    change(state)
    arguments = {"due": (2,), "begin": (state,), "save": (state,), "newest": (), "__exit__": (None, None, None)}
    with pytest.raises(RunError, match="the largest weight of update 1 is nan"):
        getattr(slow.saver, call)(*arguments[call])
    assert slow.store.updates() == [0]


def test_non_finite_weights_are_not_saved_directly(slow, state):
    slow.saver.save(state)
    change(state)
    with torch.no_grad():
        state.model.bias[0] = float("inf")
    with pytest.raises(RunError, match="the largest weight of update 1 is nan"):
        slow.saver.save(state)
    state.model.requires_grad_(False)  # frozen weights may have any value
    state.averages = AveragedWeights(torch.nn.Linear(1, 1), 0.9)
    state.averages.averages["bias"][0] = float("inf")
    with pytest.raises(RunError, match="the largest weight of update 1 is nan"):
        slow.saver.save(state)
    state.averages = None
    slow.saver.save(state)
    assert slow.store.updates() == [0, 1]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_out_of_memory_while_writing_is_a_failed_save(slow, state, monkeypatch, error):
    slow.saver.save(state)
    change(state)

    def raise_out_of_memory(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("shoestring.training.checkpoint.writing.serialize", raise_out_of_memory)
        slow.saver.begin(state)
        slow.saver._pending.written.exception(30)
        assert not slow.saver.due(1)
        ((update, reason),) = slow.record.failures
        assert update == 1 and "out of memory while writing a checkpoint" in reason
        assert [path.name for path in slow.store.root.iterdir()] == ["update-00000000"]
    slow.saver.begin(state)
    slow.saver.newest()
    assert slow.store.load().update == 1


def test_copy_memory_is_reserved_before_the_first_save(slow, state, monkeypatch):
    sizes = []
    reserve = saving.HostCopy._reserve
    monkeypatch.setattr(
        saving.HostCopy,
        "_reserve",
        lambda self, size, *, for_gpu: (sizes.append(size), reserve(self, size, for_gpu=for_gpu)),
    )
    assert not slow.saver.restore(state, allow_inexact=False)
    slow.saver.due(1)
    slow.saver._preparation.result()
    memory = slow.saver._copy._memory.data_ptr()
    slow.gate.set()
    slow.saver.begin(state)
    assert slow.saver._copy._memory.data_ptr() == memory and len(set(sizes)) == 1 < len(sizes)


@pytest.mark.parametrize("saved", [{}, {"environment": [1]}, {"environment": {1: "2"}}])
def test_checkpoint_without_an_environment_is_an_error(state, slow, saved):
    slow.saver._store.save(1, {**state.pack(), **saved})
    with pytest.raises(CheckpointError, match="update-00000001 does not contain the environment"):
        slow.saver.restore(state, allow_inexact=True)


@pytest.mark.parametrize("kind", ["engine", "trainer"])
def test_every_second_epoch_is_saved_and_kept(tmp_path, kind):
    """Also by sessions that were stopped in between, once an epoch is evaluated."""
    recipe = EpochsOfThree()
    values = {"save_epochs": 2}
    straight = session(recipe, tmp_path / "straight", values, kind=kind)
    assert straight.status == "finished"
    for at in (4, 8):
        assert session(recipe, tmp_path / "stopped", values, stop="limit", at=at, kind=kind).status == "paused"
    session(recipe, tmp_path / "stopped", values, kind=kind)
    for run in ("straight", "stopped"):
        store = Store(tmp_path / run / "checkpoints")
        retained = [update for update in store.updates() if read_manifest(store.path(update)).retained]
        assert retained == [6, 12, 18]
        assert store.updates()[-1] == 21
        for update in retained:
            sections = read_sections(store.path(update), update)
            history = (sections if kind == "trainer" else sections["progress"])["history"]
            assert history[-1]["update"] == update


class EpochsOfThree:
    """A recipe with three updates an epoch, and validation."""

    epochs = 7
    effective_batch = 2
    seed = 0

    def model(self):
        return nn.Linear(2, 1)

    def batch(self, size):
        return torch.zeros(size, 2)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def data(self):
        return {"train": torch.ones(6, 2), "validation": torch.ones(2, 2)}


@pytest.mark.parametrize("failures", [1, 2])
def test_restoring_is_tried_again_without_memory(slow, state, monkeypatch, failures):
    """A checkpoint that does not fit is not taken for one that cannot be restored."""
    slow.saver.save(state)
    expected, load, calls = state.optimizer.state_dict(), state.optimizer.load_state_dict, []

    def fail(saved):
        calls.append(saved)
        if len(calls) <= failures:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        load(saved)

    monkeypatch.setattr(state.optimizer, "load_state_dict", fail)
    if failures == 1:
        assert slow.saver.restore(state, allow_inexact=False)
        assert state.optimizer.state_dict() == expected
    else:
        with pytest.raises(NoMemoryError, match="out of memory while restoring the checkpoint: CUDA out of memory"):
            slow.saver.restore(state, allow_inexact=False)
    assert len(calls) == 2
