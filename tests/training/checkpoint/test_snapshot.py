"""Copies of a state: the same bits with and without a helper thread, and the wait for copies from a GPU."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from shoestring.techniques.streaming import host_memory
from shoestring.training.checkpoint import snapshot
from shoestring.training.checkpoint.snapshot import HostCopy, Snapshot


class StartedHelper:
    """An executor whose task has started when `submit` returns."""

    def __init__(self, executor, replacement=None):
        self._executor, self._replacement = executor, replacement

    def submit(self, function, *arguments):
        started = threading.Event()

        def work():
            started.set()
            return (self._replacement or function)(*arguments)

        future = self._executor.submit(work)
        assert started.wait(30)
        return future


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def state():
    random = torch.Generator().manual_seed(0)
    large = torch.randn(700, 300, generator=random)
    return {
        "model": {"large": large, "transposed": large.T, "half": large[:50].half(), "empty": torch.empty(0, 3)},
        "optimizer": {"step": torch.tensor(3.0), "odd": torch.randn(1009, generator=random), "tied": large},
    }


@pytest.mark.parametrize("piece_bytes", [64, 1000, 4 << 20])
def test_helper_thread_changes_no_bit(one_thread, monkeypatch, piece_bytes):
    monkeypatch.setattr(snapshot, "_PIECE_BYTES", piece_bytes)
    calls = []
    copy = snapshot._copy
    monkeypatch.setattr(snapshot, "_copy", lambda *args, **options: (calls.append(args), copy(*args, **options)))
    with ThreadPoolExecutor(1) as helper:
        host_copy = HostCopy().take(state(), StartedHelper(helper))
    assert len(calls) == 2
    for name, section in snapshot.snapshot(state()).sections.items():
        for key, tensor in section.tensors.items():
            assert torch.equal(host_copy.sections[name].tensors[key], tensor), key


def test_error_in_helper_thread_is_raised(one_thread, monkeypatch):
    def failing(pairs):
        raise MemoryError

    with ThreadPoolExecutor(1) as helper, pytest.raises(MemoryError):
        HostCopy().take(state(), StartedHelper(helper, replacement=failing))


def test_busy_helper_thread_is_not_waited_for(one_thread):
    gate = threading.Event()
    with ThreadPoolExecutor(1) as helper:
        helper.submit(gate.wait, 30)
        HostCopy().take(state(), helper)
        gate.set()


def test_wait_synchronizes_copy_events():
    waited = []

    class FakeEvent:
        def synchronize(self):
            waited.append(self)

    Snapshot(sections={}, copy_events=(FakeEvent(), FakeEvent())).wait()
    assert len(waited) == 2


class Status:
    """Like torch's binding of `cudaError`: an enumeration without a truth value."""

    def __init__(self, value):
        self.value = value

    def __int__(self):
        return self.value


class FakeRuntime:
    """Records calls of CUDA's runtime; `status` is the result of locking pages."""

    def __init__(self, status):
        self.status, self.registered, self.calls = status, set(), []

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        self.calls.append("register")
        if not self.status:
            self.registered.add(address)
        return Status(self.status)

    def cudaHostUnregister(self, address):  # noqa: N802
        self.calls.append("unregister")
        self.registered.remove(address)
        return Status(0)


@pytest.mark.parametrize("status", [0, 712])
def test_pages_are_locked_once_and_unlocked(monkeypatch, status):
    runtime = FakeRuntime(status)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(host_memory, "_forget_error", lambda: None)
    copy = HostCopy()
    for _ in range(3):
        copy._reserve(4096, for_gpu=True)
        assert copy._locked == (status == 0)
    assert runtime.calls == ["register"]
    copy._reserve(8192, for_gpu=True)
    copy.close()
    assert runtime.registered == set()
    locked = ["register", "unregister"] * 2
    assert runtime.calls == (locked if status == 0 else ["register"] * 2)


def test_forked_process_does_not_have_the_copy():
    copy = HostCopy()
    live = {"model": {"weight": torch.ones(1 << 20)}}
    copy.prepare(snapshot.snapshot(live))
    copy.take(live)
    address = copy._memory.data_ptr()
    ranges = Path("/proc/self/smaps").read_text().split("VmFlags:")
    flags = next(
        after.split("\n")[0].split()
        for before, after in itertools.pairwise(ranges)
        if any(_contains(line, address) for line in before.splitlines())
    )
    assert "dc" in flags  # do not copy on fork
    copy.close()


def _contains(line, address):
    start, dash, end = line.split(" ")[0].partition("-")
    try:
        return bool(dash) and int(start, 16) <= address < int(end, 16)
    except ValueError:
        return False
