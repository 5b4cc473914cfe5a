"""Checks of the machine apart from the GPU, on facts of invented machines."""

from dataclasses import replace

import pytest

from shoestring.base.units import GIB, MIB
from shoestring.runs.check.facts import Build, Clock
from tests.runs.check.sample_facts import BUILD, CLOCK, DISK, HOST, T4, finding_named, make_driver, make_facts


def test_import_error_of_torch_is_a_finding():
    finding = finding_named(
        "PyTorch", make_facts(build=Build(error="torch cannot be imported: OSError: libcudart.so.12"))
    )
    assert (finding.status, "libcudart" in finding.message) == ("fail", True)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({}, "pass", "200 MiB"),
        ({"error": "Read-only file system", "written_bytes": 0}, "fail", "Read-only file system"),
        ({"error": "No space left on device", "written_bytes": 9 * MIB}, "fail", "9.00 MiB of 64.00 MiB"),
        ({"seconds": 32.0}, "warn", "2.00 MiB/s"),
        ({"used_bytes": 19 * 10**9}, "warn", "limit of kaggle-t4"),
        ({"free_bytes": 300 * MIB}, "warn", "300 MiB free"),
    ],
)
def test_disk(changes, status, message):
    finding = finding_named("disk", make_facts(disk=replace(DISK, **{"seconds": 0.32, **changes})))
    assert finding.status == status
    assert message in finding.message


@pytest.mark.parametrize(("free", "status"), [(20 * GIB, "pass"), (4 * GIB, "warn"), (GIB // 2, "fail")])
def test_ram(free, status):
    assert finding_named("RAM", make_facts(host=replace(HOST, ram_free_bytes=free))).status == status


def test_cores_are_limited_by_the_control_group():
    finding = finding_named(
        "cores", make_facts(host=replace(HOST, cores=1, visible_cores=64), build=replace(BUILD, threads=1))
    )
    assert (finding.status, "1 of 64 hardware threads are usable" in finding.message) == ("warn", True)
    crowded = finding_named(
        "cores", make_facts(host=replace(HOST, cores=4, visible_cores=64), build=replace(BUILD, threads=64))
    )
    assert (crowded.status, crowded.hint) == ("warn", "set OMP_NUM_THREADS=4")
    assert finding_named("cores", make_facts()).status == "pass"


@pytest.mark.parametrize(("free", "status"), [(None, "warn"), (64 * MIB, "warn"), (2 * GIB, "pass")])
def test_shared_memory(free, status):
    assert finding_named("shared memory", make_facts(host=replace(HOST, shm_bytes=free))).status == status


@pytest.mark.parametrize(("free", "status"), [(MIB, "fail"), (200 * MIB, "warn"), (2 * GIB, "pass")])
def test_full_temporary_folder(free, status):
    assert finding_named("temporary files", make_facts(host=replace(HOST, temporary_free_bytes=free))).status == status


@pytest.mark.parametrize(
    ("clock", "offset", "status"),
    [
        (CLOCK, 0.0, "pass"),
        (CLOCK, None, "pass"),
        (CLOCK, -3600.0, "warn"),
        (Clock(unix_seconds=86_400.0, monotonic=True), 0.0, "warn"),
        (Clock(unix_seconds=CLOCK.unix_seconds, monotonic=False), 0.0, "fail"),
    ],
)
def test_clock(clock, offset, status):
    assert (
        finding_named("clock", make_facts(clock=clock, disk=replace(DISK, clock_offset_seconds=offset))).status
        == status
    )


def test_nondeterministic_cublas_workspace_is_a_warning():
    def status(workspace):
        host = replace(HOST, environment={"CUBLAS_WORKSPACE_CONFIG": workspace} if workspace else {})
        return finding_named("same bits again", make_facts(host=host, driver=make_driver(T4))).status

    assert [status(workspace) for workspace in (None, ":4096:8", ":16:8", ":0:0")] == ["pass", "pass", "pass", "warn"]


def test_debugging_variables_are_a_warning():
    finding = finding_named("environment", make_facts(host=replace(HOST, environment={"CUDA_LAUNCH_BLOCKING": "1"})))
    assert (finding.status, finding.hint) == ("warn", "unset CUDA_LAUNCH_BLOCKING")
    from shoestring.runs.check.machine import check_variables

    assert check_variables(make_facts(host=replace(HOST, environment={"CUDA_LAUNCH_BLOCKING": "0"}))) is None
