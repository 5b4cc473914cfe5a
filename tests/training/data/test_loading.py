"""Loading batches: the same bits for any number of workers, measured waiting, and no processes left behind."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from shoestring.base.errors import RunError
from shoestring.recipe.subset import Subset
from shoestring.training.data import workers as processes
from shoestring.training.data.loading import Loader
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.data.order import DataOrder

CPU = torch.device("cpu")


class RandomSamples:
    """Samples that draw from every generator, and whose sum would be rounded differently with several threads."""

    def __init__(self, samples=50):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        noise = torch.rand(40_000)
        return torch.tensor([index, random.random(), np.random.rand(), float(noise.sum())], dtype=torch.float64)


class Masking:
    """A recipe whose `collate` draws random numbers."""

    def collate(self, samples):
        batch = torch.stack(samples)
        return torch.cat([batch, torch.rand(len(batch), 1, dtype=torch.float64)], dim=1)


def loader(dataset, workers, recipe=None, *, effective_batch=8, **arguments):
    order = DataOrder(samples=len(dataset), effective_batch=effective_batch, seed=3)
    return Loader(recipe or Masking(), dataset, order, seed=3, device=CPU, workers=workers, **arguments)


def load_samples(loading, updates, micro_batch=4):
    return torch.cat([batch for update in updates for batch, _ in loading.microbatches(update, micro_batch)])


@pytest.fixture(scope="module")
def straight():
    """The samples of ten updates, which reach the second epoch."""
    with loader(RandomSamples(), 0) as loading:
        return [load_samples(loading, [update]) for update in range(10)]


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_bit_identical_for_any_number_of_workers(straight, workers):
    with loader(RandomSamples(), workers) as loading:
        for update in range(10):
            assert torch.equal(load_samples(loading, [update]), straight[update])


@pytest.mark.parametrize("rank", [0, 1])
def test_updates_in_which_a_process_has_no_samples(rank):
    """The last update of an epoch has two samples, which are of the first of two processes."""
    samples = []
    for workers in (0, 1):
        shards = LogicalShards.of_rank(2, rank=rank, size=2)
        with loader(RandomSamples(18), workers, shards=shards) as loading:
            batches = [[batch for batch, _ in loading.microbatches(update, 4)] for update in range(7)]
        samples.append([torch.cat(each).tolist() if each else [] for each in batches])
    assert samples[0] == samples[1] and [len(each) for each in samples[0][:3]] == [4, 4, 2 - 2 * rank]


def test_resuming_with_other_workers_gives_the_same_bits(straight):
    for workers, updates in ((3, range(4)), (0, range(4, 7)), (1, range(7, 10))):
        with loader(RandomSamples(), workers) as loading:
            assert torch.equal(load_samples(loading, updates), torch.cat([straight[update] for update in updates]))


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_do_not_depend_on_threads(straight, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with loader(RandomSamples(), 0) as loading:
            assert torch.equal(load_samples(loading, [0]), straight[0])
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [0, 2])
def test_repeated_update_has_the_same_samples(straight, workers):
    with loader(RandomSamples(), workers) as loading:
        load_samples(loading, [0])
        attempt = loading.microbatches(1, 4)
        next(attempt)  # then the update runs out of memory
        assert torch.equal(load_samples(loading, [1]), straight[1])
        next(loading.microbatches(1, 4))
        sizes = [size for _, size in loading.microbatches(1, 2)]
        assert sizes == [2, 2, 2, 2]
        samples = load_samples(loading, [1], 2)
        assert torch.equal(samples[:, :4], straight[1][:, :4])
        assert torch.equal(load_samples(loading, [2]), straight[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_preserves_the_generators(workers):
    torch.manual_seed(5)
    expected = torch.rand(1)
    with loader(RandomSamples(), workers) as loading:
        torch.manual_seed(5)
        load_samples(loading, [0, 1])
        assert torch.equal(torch.rand(1), expected)


class Broken(RandomSamples):
    def __getitem__(self, index):
        if index == 7:
            raise KeyError("no sample seven")
        return super().__getitem__(index)


def test_dataset_error_has_the_traceback_of_the_worker():
    with loader(Broken(), 1) as loading, pytest.raises(KeyError) as raised:
        load_samples(loading, range(10))
    assert "no sample seven" in str(raised.value) and "test_loading.py" in str(raised.value)


class Deadly(RandomSamples):
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


def test_dead_worker_raises_and_ends_the_others():
    with loader(Deadly(), 2) as loading:
        with pytest.raises(RunError, match="a data worker process died"):
            load_samples(loading, range(2))
        pids = loading.pids
    assert pids and not any(map(psutil.pid_exists, pids))


class Stuck(RandomSamples):
    def __getitem__(self, index):
        if index == self.stuck_index:
            os.write(1, b"stuck\n")
            time.sleep(600)
        return super().__getitem__(index)

    def __init__(self, stuck_index):
        super().__init__()
        self.stuck_index = stuck_index


class Unsendable:
    """A recipe whose batches cannot be pickled."""

    def collate(self, samples):
        return lambda: samples


def test_batch_that_cannot_be_sent_raises():
    with (
        loader(RandomSamples(), 1, Unsendable()) as loading,
        pytest.raises(RunError, match="a data worker process died"),
    ):
        load_samples(loading, [0])


def test_batches_are_sent_although_the_temporary_folder_has_a_long_path(tmp_path, monkeypatch):
    folder = tmp_path / "long" / ("x" * 100)
    folder.mkdir(parents=True)
    with loader(RandomSamples(), 0) as loading:
        expected = load_samples(loading, [0])
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with loader(RandomSamples(), 1) as loading:
        assert torch.equal(load_samples(loading, [0]), expected)
    assert not [*folder.iterdir()]


def test_closing_ends_a_stuck_worker_immediately(monkeypatch):
    # torch alone would wait this long for each process before ending it.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 60.0)
    order = DataOrder(samples=50, effective_batch=8, seed=3)
    loading = loader(Stuck(order.indices(1)[0]), 1)
    load_samples(loading, [0])
    pids, started_at = loading.pids, time.monotonic()
    loading.close()
    assert time.monotonic() - started_at < 50
    assert pids and not any(map(psutil.pid_exists, pids))


class IgnoringSigterm(Stuck):
    """A stuck sample in a process that ignores SIGTERM."""

    def __getitem__(self, index):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().__getitem__(index)


def test_closing_kills_a_worker_that_ignores_sigterm(monkeypatch):
    monkeypatch.setattr(processes, "_EXIT_SECONDS", 0.5)
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
    order = DataOrder(samples=50, effective_batch=8, seed=3)
    loading = loader(IgnoringSigterm(order.indices(1)[0]), 1)
    load_samples(loading, [0])
    pids, started_at = loading.pids, time.monotonic()
    loading.close()
    assert time.monotonic() - started_at < 30
    assert pids and not any(map(psutil.pid_exists, pids))


def test_closing_releases_the_iterator_of_torch():
    loading = loader(RandomSamples(), 2)
    load_samples(loading, [0])
    workers = loading._processes
    iterator = weakref.ref(workers._iterator)
    loading.close()
    assert iterator() is None and not workers.pids


# torch raises an error when it ends workers that it has not started.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_failed_start_leaves_no_process_behind(monkeypatch):
    fork, forked = os.fork, []

    def fork_once():
        if forked:
            raise BlockingIOError("no more processes")
        forked.append(fork())
        return forked[0]

    with monkeypatch.context() as patch, loader(RandomSamples(), 2) as loading:
        patch.setattr(os, "fork", fork_once)
        with pytest.raises(BlockingIOError):
            load_samples(loading, [0])
    assert forked and not psutil.pid_exists(forked[0])


def test_fixed_number_of_workers_is_used():
    assert loader(RandomSamples(), 3).workers == 3
    assert loader(RandomSamples(), None).workers == 0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Slow(RandomSamples):
    """Samples that take `seconds` of a clock each; a worker process has its own copy of the clock."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def __getitem__(self, index):
        self.clock.now += self.seconds
        return super().__getitem__(index)


def test_waiting_is_measured_and_starts_workers(monkeypatch):
    monkeypatch.setattr(sys.modules[Loader.__module__], "cores", lambda: 4)
    clock = Clock()
    with loader(Slow(clock, 0.125), None, clock=clock) as loading:
        for update in range(5):
            for _ in loading.microbatches(update, 4):
                clock.now += 0.5
        assert loading.waiting_seconds == 5 * 8 * 0.125 and loading.workers == 0
        load_samples(loading, [5])
        # Fetching and computing take one second each: one process would not be quite enough.
        assert loading.workers == 2
        waiting_seconds = loading.waiting_seconds
        load_samples(loading, range(6, 8))
        assert loading.waiting_seconds == waiting_seconds and len(loading.pids) == 2


def test_no_workers_without_shared_memory(monkeypatch):
    calls = []
    module = sys.modules[Loader.__module__]
    monkeypatch.setattr(
        module,
        "max_workers_in_shared_memory",
        lambda nbytes, *, prefetch: calls.append((nbytes, prefetch)) or 0,
    )
    clock = Clock()
    with loader(Slow(clock, 1.0), None, clock=clock) as loading:
        load_samples(loading, range(30))
        assert loading.workers == 0 and calls == [(4 * 5 * 8, 2)]


class Lengths(Masking):
    """A recipe with the lengths of the whole dataset."""

    def length(self, dataset, index):
        assert isinstance(dataset, RandomSamples)
        return index


def test_subset_uses_the_lengths_of_its_samples():
    subset = Subset(RandomSamples(), [3, 20, 40, 41])
    with loader(subset, 0, Lengths()) as loading:
        assert load_samples(loading, [0])[:, 0].tolist() == [41, 40, 20, 3]


CHILD = """
import sys, time, torch
sys.path.insert(0, {root!r})
from tests.training.data.test_loading import RandomSamples, Stuck, loader
from shoestring.training.session.signals import StopSignals
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


@pytest.fixture(params=["RandomSamples()"])
def child(request):
    code = CHILD.format(root=str(Path(__file__).parents[3]), dataset=request.param)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    yield process, [psutil.Process(pid) for pid in pids]
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_group_stops_training_and_workers(child, number):
    process, workers = child
    os.killpg(process.pid, number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and out == f"stopped by {number.name}\n"
    assert not psutil.wait_procs(workers, timeout=10)[1]


@pytest.mark.parametrize("child", ["Stuck(7)"], indirect=True)
def test_workers_end_when_training_is_killed(child):
    """Also while they fetch a sample, when torch's own check would not run."""
    process, workers = child
    assert process.stdout.readline() == "stuck\n"
    process.kill()
    assert not psutil.wait_procs(workers, timeout=30)[1]
