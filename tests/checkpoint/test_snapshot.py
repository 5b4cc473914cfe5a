"""A copy of a state: the same bits whoever makes it, and what a GPU still owes is waited for by who writes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from shoestring.checkpoint import snapshot
from shoestring.checkpoint.snapshot import HostCopy, Snapshot


class Begun:
    """A thread that has begun to help when `submit` returns."""

    def __init__(self, thread, instead=None):
        self._thread, self._instead = thread, instead

    def submit(self, act, *arguments):
        begun = threading.Event()

        def work():
            begun.set()
            return (self._instead or act)(*arguments)

        helping = self._thread.submit(work)
        assert begun.wait(30)
        return helping


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def state():
    random = torch.Generator().manual_seed(0)
    large = torch.randn(700, 300, generator=random)
    return {
        "model": {"large": large, "turned": large.T, "half": large[:50].half(), "empty": torch.empty(0, 3)},
        "optimizer": {"step": torch.tensor(3.0), "odd": torch.randn(1009, generator=random), "tied": large},
    }


@pytest.mark.parametrize("piece", [64, 1000, 4 << 20])
def test_a_thread_that_helps_changes_no_bit(one_thread, monkeypatch, piece):
    monkeypatch.setattr(snapshot, "_PIECE", piece)
    copied = []
    copy = snapshot._copy
    monkeypatch.setattr(snapshot, "_copy", lambda *args, **how: (copied.append(args), copy(*args, **how)))
    with ThreadPoolExecutor(1) as helper:
        found = HostCopy().take(state(), Begun(helper))
    assert len(copied) == 2
    for name, section in snapshot.snapshot(state()).sections.items():
        for key, tensor in section.tensors.items():
            assert torch.equal(found.sections[name].tensors[key], tensor), key


def test_an_error_of_the_thread_that_helps_is_not_lost(one_thread, monkeypatch):
    def failing(pairs):
        raise MemoryError

    with ThreadPoolExecutor(1) as helper, pytest.raises(MemoryError):
        HostCopy().take(state(), Begun(helper, instead=failing))


def test_a_thread_that_is_too_late_to_help_is_not_waited_for(one_thread):
    gate = threading.Event()
    with ThreadPoolExecutor(1) as helper:
        helper.submit(gate.wait, 30)
        HostCopy().take(state(), helper)
        gate.set()


def test_what_is_still_arriving_is_waited_for():
    waited = []

    class Event:
        def synchronize(self):
            waited.append(self)

    Snapshot(sections={}, arriving=(Event(), Event())).wait()
    assert len(waited) == 2
