import os

import pytest

from shoestring.training.data.worker_count import WorkerCount, max_workers_in_shared_memory


def simulate(count, updates, *, fetch, compute, microbatches=1, max_useful=None):
    """Simulate updates whose data takes `fetch` seconds, shared by the processes, while computing takes `compute`."""
    counts = []
    for _ in range(updates):
        workers = count.count
        counts.append(workers)
        waiting_seconds = max(0.0, fetch / min(workers, max_useful or workers) - compute) if workers else fetch
        count.observe(waiting_seconds=waiting_seconds, seconds=waiting_seconds + compute, microbatches=microbatches)
    return counts


def test_no_workers_if_waiting_costs_little():
    assert set(simulate(WorkerCount(8), 100, fetch=0.04, compute=1.0)) == {0}


def test_no_workers_if_fetching_is_faster_than_passing():
    assert set(simulate(WorkerCount(8), 9000, fetch=1e-3, compute=1e-3)) == {0}


@pytest.mark.parametrize(("fetch", "expected"), [(0.5, 1), (1.0, 2), (3.0, 4), (100.0, 8)])
def test_enough_workers_for_training_up_to_the_cores(fetch, expected):
    count = WorkerCount(8)
    counts = simulate(count, 100, fetch=fetch, compute=1.0)
    assert (counts[0], count.count) == (0, expected)


def test_count_stays_if_more_workers_do_not_help():
    count = WorkerCount(8)
    counts = simulate(count, 300, fetch=4.0, compute=1.0, max_useful=2)  # a disk that two of them saturate
    assert set(counts) == {0, 5, 8} and set(counts[-200:]) == {5}


def test_workers_that_slow_down_training_are_ended():
    count, counts = WorkerCount(8), set()
    for _ in range(100):
        # Passing a batch between processes costs more than fetching it.
        waiting_seconds = 0.3 if count.count == 0 else 0.9
        count.observe(waiting_seconds=waiting_seconds, seconds=waiting_seconds + 1.0, microbatches=1)
        counts.add(count.count)
    assert count.count == 0 and counts == {0, 1}


def test_count_is_measured_again_when_waiting_increases():
    count = WorkerCount(8)
    simulate(count, 50, fetch=0.01, compute=1.0)
    assert count.count == 0
    simulate(count, 50, fetch=1.0, compute=1.0)
    assert count.count == 2
    simulate(count, 50, fetch=3.0, compute=1.0)
    assert count.count == 4


def test_single_core_may_have_two_workers():
    count = WorkerCount(1)
    simulate(count, 50, fetch=3.0, compute=1.0)
    assert count.count == 2


def test_limit_is_respected():
    count = WorkerCount(8)
    count.limit(3)
    simulate(count, 100, fetch=100.0, compute=1.0)
    assert count.count == 3
    no_workers = WorkerCount(8)
    no_workers.limit(0)
    assert set(simulate(no_workers, 100, fetch=100.0, compute=1.0)) == {0}


def test_workers_use_half_of_shared_memory(tmp_path):
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    assert max_workers_in_shared_memory(free // 2 // 2 // 5, prefetch=2, shared=str(tmp_path)) in (4, 5)
    assert max_workers_in_shared_memory(free, prefetch=2, shared=str(tmp_path)) == 0
    assert max_workers_in_shared_memory(free, prefetch=2, shared=str(tmp_path / "none")) >= 8


def test_few_long_updates_are_measured():
    for updates, seconds, microbatches in ((4, 40.0, 1), (3, 2.0, 16)):
        count = WorkerCount(8)
        counts = simulate(count, updates, fetch=seconds / 2, compute=seconds / 2, microbatches=microbatches)
        assert counts[-1] == 2


def test_first_update_is_not_measured():
    count = WorkerCount(8)
    count.observe(waiting_seconds=100.0, seconds=101.0, microbatches=1)
    simulate(count, 50, fetch=0.01, compute=1.0)
    assert count.count == 0
