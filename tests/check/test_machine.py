"""Verdicts on the machine around the GPU, from facts that are made up."""

from dataclasses import replace

import pytest

from shoestring.check.facts import Build, Clock
from shoestring.units import GIB, MIB
from tests.check.handmade import BUILD, CLOCK, DISK, HOST, T4, driver, facts, line


def test_a_torch_that_cannot_be_imported_is_a_line():
    found = line(facts(build=Build(error="it cannot be imported: OSError: libcudart.so.12")), "PyTorch")
    assert (found.status, "libcudart" in found.message) == ("fail", True)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "pass", "200 MiB"),
        ({"error": "Read-only file system", "written_bytes": 0}, "fail", "Read-only file system"),
        ({"error": "No space left on device", "written_bytes": 9 * MIB}, "fail", "9.00 MiB of 64.00 MiB"),
        ({"seconds": 32.0}, "warn", "2.00 MiB/s"),
        ({"used_bytes": 19 * 10**9}, "warn", "limit of kaggle-t4"),
        ({"free_bytes": 300 * MIB}, "warn", "300 MiB free"),
    ],
)
def test_the_disk(changes, status, said):
    found = line(facts(disk=replace(DISK, **{"seconds": 0.32, **changes})), "disk")
    assert found.status == status
    assert said in found.message


@pytest.mark.parametrize(("free", "status"), [(20 * GIB, "pass"), (4 * GIB, "warn"), (GIB // 2, "fail")])
def test_ram(free, status):
    assert line(facts(host=replace(HOST, ram_free_bytes=free)), "RAM").status == status


def test_cores_within_a_control_group_count():
    found = line(facts(host=replace(HOST, cores=1, cores_seen=64), build=replace(BUILD, threads=1)), "cores")
    assert (found.status, "1 hardware threads of the 64 that are seen" in found.message) == ("warn", True)
    crowded = line(facts(host=replace(HOST, cores=4, cores_seen=64), build=replace(BUILD, threads=64)), "cores")
    assert (crowded.status, crowded.hint) == ("warn", "OMP_NUM_THREADS=4")
    assert line(facts(), "cores").status == "pass"


@pytest.mark.parametrize(("free", "status"), [(None, "warn"), (64 * MIB, "warn"), (2 * GIB, "pass")])
def test_shared_memory(free, status):
    assert line(facts(host=replace(HOST, shm_bytes=free)), "shared memory").status == status


@pytest.mark.parametrize(("free", "status"), [(MIB, "fail"), (200 * MIB, "warn"), (2 * GIB, "pass")])
def test_a_full_temporary_directory(free, status):
    assert line(facts(host=replace(HOST, temporary_free_bytes=free)), "temporary files").status == status


@pytest.mark.parametrize(
    ("clock", "offset", "status"),
    [
        (CLOCK, 0.0, "pass"),
        (CLOCK, None, "pass"),
        (CLOCK, -3600.0, "warn"),
        (Clock(now=86_400.0, monotonic=True), 0.0, "warn"),
        (Clock(now=CLOCK.now, monotonic=False), 0.0, "fail"),
    ],
)
def test_the_clock(clock, offset, status):
    assert line(facts(clock=clock, disk=replace(DISK, clock_offset_seconds=offset)), "clock").status == status


def test_a_workspace_with_which_bits_differ_is_told():
    def judge(chosen):
        host = replace(HOST, environment={"CUBLAS_WORKSPACE_CONFIG": chosen} if chosen else {})
        return line(facts(host=host, driver=driver(T4)), "same bits again").status

    assert [judge(chosen) for chosen in (None, ":4096:8", ":16:8", ":0:0")] == ["pass", "pass", "pass", "warn"]


def test_variables_of_a_hunt_for_a_bug_are_told():
    found = line(facts(host=replace(HOST, environment={"CUDA_LAUNCH_BLOCKING": "1"})), "environment")
    assert (found.status, found.hint) == ("warn", "unset CUDA_LAUNCH_BLOCKING")
    from shoestring.check.machine import variables

    assert variables(facts(host=replace(HOST, environment={"CUDA_LAUNCH_BLOCKING": "0"}))) is None
