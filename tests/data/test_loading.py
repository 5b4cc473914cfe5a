"""Whoever fetches a batch, it is the same; who waits for it is told; no process stays behind."""

import os
import random
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from shoestring.data import workers as processes
from shoestring.data.loading import Loader
from shoestring.data.order import DataOrder
from shoestring.errors import RunError
from shoestring.recipe.subset import Subset

CPU = torch.device("cpu")


class Drawn:
    """Each sample draws from every generator, and sums in an order that threads would change."""

    def __init__(self, samples=50):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        noise = torch.rand(40_000)
        return torch.tensor([index, random.random(), np.random.rand(), float(noise.sum())], dtype=torch.float64)


class Masking:
    """A recipe whose batches draw as well."""

    def collate(self, samples):
        batch = torch.stack(samples)
        return torch.cat([batch, torch.rand(len(batch), 1, dtype=torch.float64)], dim=1)


def loader(dataset, workers, recipe=None, *, effective_batch=8, **more):
    order = DataOrder(samples=len(dataset), effective_batch=effective_batch, seed=3)
    return Loader(recipe or Masking(), dataset, order, seed=3, device=CPU, workers=workers, **more)


def seen(loading, updates, micro_batch=4):
    return torch.cat([batch for update in updates for batch, _ in loading.microbatches(update, micro_batch)])


@pytest.fixture(scope="module")
def straight():
    """Ten updates, into the second epoch."""
    with loader(Drawn(), 0) as loading:
        return [seen(loading, [update]) for update in range(10)]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_batches_are_the_same_bits_whatever_the_number_of_workers(straight, workers):
    with loader(Drawn(), workers) as loading:
        for update in range(10):
            assert torch.equal(seen(loading, [update]), straight[update])


def test_a_resume_with_another_number_goes_on_with_the_same_bits(straight):
    for workers, updates in ((3, range(4)), (0, range(4, 7)), (1, range(7, 10))):
        with loader(Drawn(), workers) as loading:
            assert torch.equal(seen(loading, updates), torch.cat([straight[update] for update in updates]))


@pytest.mark.parametrize("threads", [1, 3])
def test_nor_do_the_threads_of_training_matter(straight, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with loader(Drawn(), 0) as loading:
            assert torch.equal(seen(loading, [0]), straight[0])
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_update_asked_again_in_smaller_microbatches_has_the_same_samples(straight, workers):
    with loader(Drawn(), workers) as loading:
        seen(loading, [0])
        attempt = loading.microbatches(1, 4)
        next(attempt)  # and then memory was out
        assert torch.equal(seen(loading, [1]), straight[1])
        next(loading.microbatches(1, 4))
        sizes = [size for _, size in loading.microbatches(1, 2)]
        assert sizes == [2, 2, 2, 2]
        again = seen(loading, [1], 2)
        assert torch.equal(again[:, :4], straight[1][:, :4])
        assert torch.equal(seen(loading, [2]), straight[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_fetching_leaves_the_generators_of_training_alone(workers):
    torch.manual_seed(5)
    expected = torch.rand(1)
    with loader(Drawn(), workers) as loading:
        torch.manual_seed(5)
        seen(loading, [0, 1])
        assert torch.equal(torch.rand(1), expected)


class Broken(Drawn):
    def __getitem__(self, index):
        if index == 7:
            raise KeyError("no sample seven")
        return super().__getitem__(index)


def test_what_a_dataset_raises_in_a_worker_comes_with_its_traceback():
    with loader(Broken(), 1) as loading, pytest.raises(KeyError) as caught:
        seen(loading, range(10))
    assert "no sample seven" in str(caught.value) and "test_loading.py" in str(caught.value)


class Deadly(Drawn):
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_is_an_error_and_leaves_none_behind():
    with loader(Deadly(), 2) as loading:
        with pytest.raises(RunError, match="a process that fetches data died"):
            seen(loading, range(2))
        pids = loading.pids
    assert pids and not any(map(psutil.pid_exists, pids))


class Stuck(Drawn):
    def __getitem__(self, index):
        if index == self.at:
            os.write(1, b"stuck\n")
            time.sleep(600)
        return super().__getitem__(index)

    def __init__(self, at):
        super().__init__()
        self.at = at


def test_closing_ends_a_worker_in_the_middle_of_a_sample_at_once(monkeypatch):
    # torch alone would wait so long for each process before it ends it.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 60.0)
    order = DataOrder(samples=50, effective_batch=8, seed=3)
    loading = loader(Stuck(order.indices(1)[0]), 1)
    seen(loading, [0])
    pids, began = loading.pids, time.monotonic()
    loading.close()
    assert time.monotonic() - began < 50
    assert pids and not any(map(psutil.pid_exists, pids))


class Deaf(Stuck):
    """Stuck, and deaf to being asked to leave."""

    def __getitem__(self, index):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().__getitem__(index)


def test_closing_ends_a_worker_that_does_not_hear(monkeypatch):
    monkeypatch.setattr(processes, "_PATIENCE", 0.5)
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
    order = DataOrder(samples=50, effective_batch=8, seed=3)
    loading = loader(Deaf(order.indices(1)[0]), 1)
    seen(loading, [0])
    pids, began = loading.pids, time.monotonic()
    loading.close()
    assert time.monotonic() - began < 30
    assert pids and not any(map(psutil.pid_exists, pids))


def test_what_torch_has_beside_the_processes_goes_with_them():
    loading = loader(Drawn(), 2)
    seen(loading, [0])
    ended = loading._processes
    iterator = weakref.ref(ended._iterator)
    loading.close()
    assert iterator() is None and not ended.pids


# torch, asked to end what it had not started, finds no list of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_process_that_could_not_be_started_leaves_none_behind(monkeypatch):
    fork, forked = os.fork, []

    def limited():
        if forked:
            raise BlockingIOError("no more processes")
        forked.append(fork())
        return forked[0]

    with monkeypatch.context() as patch, loader(Drawn(), 2) as loading:
        patch.setattr(os, "fork", limited)
        with pytest.raises(BlockingIOError):
            seen(loading, [0])
    assert forked and not psutil.pid_exists(forked[0])


def test_a_fixed_number_is_kept_and_none_is_measured():
    assert loader(Drawn(), 3).workers == 3
    assert loader(Drawn(), None).workers == 0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Slow(Drawn):
    """Takes `seconds` of a clock for each sample; a worker's clock is a copy of its own."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def __getitem__(self, index):
        self.clock.now += self.seconds
        return super().__getitem__(index)


def test_waiting_is_measured_and_workers_are_started_for_it(monkeypatch):
    monkeypatch.setattr(sys.modules[Loader.__module__], "cores", lambda: 4)
    clock = Clock()
    with loader(Slow(clock, 0.125), None, clock=clock) as loading:
        for update in range(5):
            for _ in loading.microbatches(update, 4):
                clock.now += 0.5
        assert loading.waiting_seconds == 5 * 8 * 0.125 and loading.workers == 0
        seen(loading, [5])
        # A second to fetch beside one of arithmetic: one process would not be quite enough.
        assert loading.workers == 2
        waited = loading.waiting_seconds
        seen(loading, range(6, 8))
        assert loading.waiting_seconds == waited and len(loading.pids) == 2


def test_for_batches_that_find_no_room_none_are_started(monkeypatch):
    asked = []
    module = sys.modules[Loader.__module__]
    monkeypatch.setattr(module, "room", lambda nbytes, *, ahead: asked.append((nbytes, ahead)) or 0)
    clock = Clock()
    with loader(Slow(clock, 1.0), None, clock=clock) as loading:
        seen(loading, range(30))
        assert loading.workers == 0 and asked == [(4 * 5 * 8, 2)]


class Lengths(Masking):
    """A recipe that knows the lengths of the whole of its data."""

    def length(self, dataset, index):
        assert isinstance(dataset, Drawn)
        return index


def test_a_subset_asks_for_the_lengths_of_its_own_samples():
    subset = Subset(Drawn(), [3, 20, 40, 41])
    with loader(subset, 0, Lengths()) as loading:
        assert seen(loading, [0])[:, 0].tolist() == [41, 40, 20, 3]


CHILD = """
import sys, time, torch
sys.path.insert(0, {root!r})
from tests.data.test_loading import Drawn, Stuck, loader
from shoestring.session.signals import StopSignals
loading = loader({dataset}, 2)
with StopSignals() as signals:
    update = 0
    while not signals.received:
        for _ in loading.microbatches(update, 4):
            pass
        if update == 0:
            print(*loading.pids, flush=True)
        update += 1
    for _ in loading.microbatches(update, 4):
        pass
    loading.close()
print("stopped by", signals.received, flush=True)
"""


@pytest.fixture(params=["Drawn()"])
def child(request):
    code = CHILD.format(root=str(Path(__file__).parents[2]), dataset=request.param)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    yield process, [psutil.Process(pid) for pid in pids]
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_stops_training_at_its_next_safe_place_and_no_worker_stays(child, number):
    process, workers = child
    os.killpg(process.pid, number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and out == f"stopped by {number.name}\n"
    assert not psutil.wait_procs(workers, timeout=10)[1]


@pytest.mark.parametrize("child", ["Stuck(7)"], indirect=True)
def test_no_worker_outlives_training_that_was_killed(child):
    """Not even in the middle of a sample, where torch's own would not notice."""
    process, workers = child
    assert process.stdout.readline() == "stuck\n"
    process.kill()
    assert not psutil.wait_procs(workers, timeout=30)[1]
