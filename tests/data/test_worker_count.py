import os

import pytest

from shoestring.data.worker_count import WorkerCount, room


def simulate(count, updates, *, fetch, compute, microbatches=1, most=None):
    """Train so many updates: `fetch` seconds of work for each one's data, shared by the processes, beside `compute`."""
    used = []
    for _ in range(updates):
        workers = count.count
        used.append(workers)
        waited = max(0.0, fetch / min(workers, most or workers) - compute) if workers else fetch
        count.observe(waited=waited, seconds=waited + compute, microbatches=microbatches)
    return used


def test_none_where_waiting_costs_little():
    assert set(simulate(WorkerCount(8), 100, fetch=0.04, compute=1.0)) == {0}


def test_none_where_a_batch_is_fetched_faster_than_it_would_be_handed_over():
    assert set(simulate(WorkerCount(8), 9000, fetch=1e-3, compute=1e-3)) == {0}


@pytest.mark.parametrize(("fetch", "expected"), [(0.5, 1), (1.0, 2), (3.0, 4), (100.0, 8)])
def test_as_many_as_keep_up_with_training_but_no_more_than_there_are_cores(fetch, expected):
    count = WorkerCount(8)
    used = simulate(count, 100, fetch=fetch, compute=1.0)
    assert (used[0], count.count) == (0, expected)


def test_where_more_processes_do_not_help_it_stays_at_what_it_tried_first():
    count = WorkerCount(8)
    used = simulate(count, 300, fetch=4.0, compute=1.0, most=2)  # a disk that two of them use up
    assert set(used) == {0, 5, 8} and set(used[-200:]) == {5}


def test_where_they_make_it_slower_they_are_given_up():
    count, used = WorkerCount(8), set()
    for _ in range(100):
        # Handing over costs more than fetching did.
        waited = 0.3 if count.count == 0 else 0.9
        count.observe(waited=waited, seconds=waited + 1.0, microbatches=1)
        used.add(count.count)
    assert count.count == 0 and used == {0, 1}


def test_it_is_measured_again_when_the_data_waits_more():
    count = WorkerCount(8)
    simulate(count, 50, fetch=0.01, compute=1.0)
    assert count.count == 0
    simulate(count, 50, fetch=1.0, compute=1.0)
    assert count.count == 2
    simulate(count, 50, fetch=3.0, compute=1.0)
    assert count.count == 4


def test_on_a_single_core_two_may_fetch_what_is_slow_to_arrive():
    count = WorkerCount(1)
    simulate(count, 50, fetch=3.0, compute=1.0)
    assert count.count == 2


def test_no_more_than_there_is_room_for():
    count = WorkerCount(8)
    count.limit(3)
    simulate(count, 100, fetch=100.0, compute=1.0)
    assert count.count == 3
    none = WorkerCount(8)
    none.limit(0)
    assert set(simulate(none, 100, fetch=100.0, compute=1.0)) == {0}


def test_room_is_half_of_the_memory_that_batches_are_handed_over_in(tmp_path):
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    assert room(free // 2 // 2 // 5, ahead=2, shared=str(tmp_path)) in (4, 5)
    assert room(free, ahead=2, shared=str(tmp_path)) == 0
    assert room(free, ahead=2, shared=str(tmp_path / "none")) >= 8


def test_few_long_updates_are_enough_of_a_measurement():
    for updates, seconds, microbatches in ((4, 40.0, 1), (3, 2.0, 16)):
        count = WorkerCount(8)
        used = simulate(count, updates, fetch=seconds / 2, compute=seconds / 2, microbatches=microbatches)
        assert used[-1] == 2


def test_the_first_update_is_no_measurement():
    count = WorkerCount(8)
    count.observe(waited=100.0, seconds=101.0, microbatches=1)
    simulate(count, 50, fetch=0.01, compute=1.0)
    assert count.count == 0
