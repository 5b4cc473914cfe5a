"""Checks of GPUs, on facts of invented machines."""

from dataclasses import replace

import pytest

from shoestring.base.units import GIB, MIB
from shoestring.runs.check.facts import Build, Gpu, GpuLink
from shoestring.runs.check.gpu import has_kernels
from shoestring.runs.check.preflight import run_checks
from tests.runs.check.sample_facts import (
    ARCHS,
    BUILD,
    HOST,
    L4,
    P100,
    T4,
    finding_named,
    make_driver,
    make_facts,
    problem_names,
    with_used_memory,
)


def test_healthy_t4_session_lacks_only_bf16_and_flash_attention():
    assert problem_names(make_facts()) == {"bf16", "attention"}
    assert problem_names(make_facts(driver=make_driver(L4), on="l4", platform=None)) == set()


def test_p100_with_cuda_12_8_build_fails_with_hint():
    finding = finding_named("kernels", make_facts(on="p100", driver=make_driver(P100), platform=None))
    assert finding.status == "fail"
    assert "sm_60" in finding.message and "sm_75" in finding.message
    assert "cu126" in finding.hint
    older_build = replace(BUILD, cuda=(12, 6), archs=("sm_50", "sm_60", "sm_70", "sm_75"))
    assert (
        finding_named(
            "kernels", make_facts(on="p100", driver=make_driver(P100), build=older_build, platform=None)
        ).status
        == "pass"
    )


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        (ARCHS, (7, 5), True),
        (ARCHS, (6, 0), False),
        (ARCHS, (7, 0), False),  # sm_75 is for 7.5 and later of that major version
        (ARCHS, (8, 9), True),  # runs sm_86's
        (ARCHS, (12, 1), True),
        (ARCHS, (13, 0), True),  # compiled from compute_120
        (("sm_86",), (8, 0), False),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_100f",), (10, 3), True),
        (("compute_90a",), (10, 0), False),
        (("nonsense",), (8, 0), False),
    ],
)
def test_kernel_architectures_for_capability(archs, capability, expected):
    assert has_kernels(archs, capability) is expected


def test_build_without_cuda_fails():
    build = Build(version="2.13.0+cpu")
    assert "without CUDA" in finding_named("kernels", make_facts(build=build)).message
    assert finding_named("kernels", make_facts(build=build)).status == "fail"


def test_failed_gpu_computation_fails_the_check():
    gpus = (Gpu(title="Tesla T4", capability=(7, 5), error="CUDA error: unspecified launch failure"),)
    finding = finding_named("kernels", make_facts(build=replace(BUILD, gpus=gpus)))
    assert (finding.status, "unspecified launch failure" in finding.message) == ("fail", True)
    finding = finding_named("kernels", make_facts(build=replace(BUILD, gpus=(), archs=(), error="driver too old")))
    assert (finding.status, "driver too old" in finding.message) == ("fail", True)


@pytest.mark.parametrize(
    ("cuda", "status"), [((11, 8), "fail"), ((12, 4), "warn"), ((12, 8), "pass"), ((13, 0), "pass")]
)
def test_driver_supports_cuda_of_the_build(cuda, status):
    finding = finding_named("driver", make_facts(driver=make_driver(T4, cuda=cuda)))
    assert finding.status == status
    assert f"CUDA {cuda[0]}.{cuda[1]}" in finding.message and "12.8" in finding.message


def test_bf16_is_emulated_on_a_t4():
    finding = finding_named("bf16", make_facts())
    assert (finding.status, "emulates" in finding.message, "fp16" in finding.hint) == ("warn", True, True)
    assert finding_named("bf16", make_facts(driver=make_driver(L4))).status == "pass"


def test_flash_attention_needs_the_gpu_and_the_build():
    assert "does not support FlashAttention" in finding_named("attention", make_facts()).message
    without_flash = make_facts(driver=make_driver(L4), build=replace(BUILD, flash=False))
    assert "torch is built without FlashAttention" in finding_named("attention", without_flash).message
    assert finding_named("attention", make_facts(driver=make_driver(L4))).status == "pass"


def test_full_gpu_names_the_processes_using_it():
    finding = finding_named("GPU memory", make_facts(driver=make_driver(with_used_memory(T4, 10 * GIB, 4242))))
    assert finding.status == "fail"
    assert "pid 4242 python (10.00 GiB)" in finding.message and "kill 4242" in finding.hint
    assert (
        finding_named("GPU memory", make_facts(driver=make_driver(with_used_memory(T4, 3 * GIB, 4242)))).status
        == "warn"
    )
    assert (
        "processes that the driver does not report"
        in finding_named("GPU memory", make_facts(driver=make_driver(with_used_memory(T4, 3 * GIB)))).message
    )
    assert finding_named("GPU memory", make_facts(driver=make_driver(with_used_memory(T4, 200 * MIB)))).status == "pass"


def test_fullest_gpu_is_reported():
    finding = finding_named(
        "GPU memory", make_facts(driver=make_driver(T4, with_used_memory(T4, 10 * GIB, 7)), on="kaggle-t4x2")
    )
    assert (finding.status, "pid 7" in finding.message) == ("fail", True)


def test_fewer_gpus_than_the_target_fail():
    finding = finding_named("GPUs used", make_facts(on="kaggle-t4x2"))
    assert (finding.status, "has 2 GPUs, but the number visible is 1" in finding.message) == ("fail", True)
    hidden_gpu = make_facts(on="kaggle-t4x2", driver=make_driver(T4, replace(T4, is_visible=False)))
    assert "CUDA_VISIBLE_DEVICES" in finding_named("GPUs used", hidden_gpu).message


def test_two_equal_gpus_are_used():
    finding = finding_named("GPUs used", make_facts(on="kaggle-t4x2", driver=make_driver(T4, T4)))
    assert (finding.status, finding.message) == ("pass", "2 visible and used")
    unequal = finding_named("GPUs used", make_facts(on="kaggle-t4x2", driver=make_driver(T4, L4)))
    assert (unequal.status, "the GPUs differ: 1 x Tesla T4, 1 x NVIDIA L4" in unequal.message) == ("warn", True)


@pytest.mark.parametrize(
    ("link", "status", "words"),
    [
        (GpuLink(bytes=64 * MIB, seconds=0.017), "pass", "64.00 MiB of gradients in 17 ms, 3.68 GiB/s, without access"),
        (GpuLink(bytes=64 * MIB, seconds=0.1, peer_access=True), "warn", "640 MiB/s, with access"),
        (GpuLink(error="NCCL error 2"), "fail", "cannot exchange gradients: NCCL error 2"),
    ],
)
def test_link_between_gpus(link, status, words):
    facts = make_facts(on="kaggle-t4x2", driver=make_driver(T4, T4), build=replace(BUILD, link=link))
    finding = finding_named("GPU link", facts)
    assert (finding.status, words in finding.message) == (status, True), finding.message


def test_more_processes_than_gpus_fail():
    finding = finding_named("GPUs used", make_facts(processes={"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}))
    assert (finding.status, "2 processes" in finding.message) == ("fail", True)
    assert (
        finding_named("GPUs used", make_facts(processes={"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"})).status == "pass"
    )


def test_gpu_of_another_model_is_a_warning():
    assert finding_named("GPUs used", make_facts(driver=make_driver(L4))).status == "warn"


def test_missing_gpu_fails_only_if_requested():
    assert finding_named("GPU", make_facts(driver=None)).status == "fail"
    assert "Accelerator" in finding_named("GPU", make_facts(driver=None)).hint
    assert "shoestring plan --on kaggle-t4" in finding_named("GPU", make_facts(driver=None, platform=None)).hint
    assert finding_named("GPU", make_facts(on="local", driver=None)).status == "warn"
    assert finding_named("GPU", make_facts(on="cpu", driver=None)).status == "pass"


def test_hidden_gpus_are_not_reported_as_missing():
    host = replace(HOST, environment={"CUDA_VISIBLE_DEVICES": "-1"})
    finding = finding_named("GPU", make_facts(on="local", driver=make_driver(replace(T4, is_visible=False)), host=host))
    assert (finding.status, "'-1' hides 1 x Tesla T4" in finding.message) == ("fail", True)


def test_driver_error_is_a_finding():
    finding = finding_named("GPU", make_facts(driver=None, driver_error="the driver does not answer: version mismatch"))
    assert (finding.status, "version mismatch" in finding.message) == ("fail", True)


def test_gpu_checks_are_skipped_for_the_cpu():
    names = {
        finding.name
        for finding in run_checks(make_facts(on="cpu", driver=make_driver(with_used_memory(P100, 15 * GIB, 7))))
    }
    assert not names & {"kernels", "bf16", "attention", "GPU memory", "GPUs used"}
