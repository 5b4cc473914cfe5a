"""Verdicts on GPUs, from facts of machines that are made up."""

from dataclasses import replace

import pytest

from shoestring.check.facts import Build, Used
from shoestring.check.gpu import has_kernels
from shoestring.check.preflight import judged
from shoestring.units import GIB, MIB
from tests.check.handmade import ARCHS, BUILD, HOST, L4, P100, T4, complaints, driver, facts, held, line


def test_a_good_session_has_only_what_a_t4_has_not():
    assert complaints(facts()) == {"bf16", "attention"}
    assert complaints(facts(driver=driver(L4), on="l4", platform=None)) == set()


def test_a_p100_under_a_cuda_12_8_build_fails_before_its_first_error_and_names_the_build_that_works():
    found = line(facts(on="p100", driver=driver(P100), platform=None), "kernels")
    assert found.status == "fail"
    assert "sm_60" in found.message and "sm_75" in found.message
    assert "cu126" in found.hint
    older = replace(BUILD, cuda=(12, 6), archs=("sm_50", "sm_60", "sm_70", "sm_75"))
    assert line(facts(on="p100", driver=driver(P100), build=older, platform=None), "kernels").status == "pass"


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
def test_which_machine_code_runs_where(archs, capability, expected):
    assert has_kernels(archs, capability) is expected


def test_a_build_without_cuda_beside_a_gpu_fails():
    build = Build(version="2.13.0+cpu")
    assert "without CUDA" in line(facts(build=build), "kernels").message
    assert line(facts(build=build), "kernels").status == "fail"


def test_a_gpu_on_which_a_small_product_fails_is_no_gpu():
    used = (Used(title="Tesla T4", capability=(7, 5), error="CUDA error: unspecified launch failure"),)
    found = line(facts(build=replace(BUILD, used=used)), "kernels")
    assert (found.status, "unspecified launch failure" in found.message) == ("fail", True)
    found = line(facts(build=replace(BUILD, used=(), archs=(), error="driver too old")), "kernels")
    assert (found.status, "driver too old" in found.message) == ("fail", True)


@pytest.mark.parametrize(
    ("cuda", "status"), [((11, 8), "fail"), ((12, 4), "warn"), ((12, 8), "pass"), ((13, 0), "pass")]
)
def test_the_driver_against_the_builds_cuda(cuda, status):
    found = line(facts(driver=driver(T4, cuda=cuda)), "driver")
    assert found.status == status
    assert f"CUDA {cuda[0]}.{cuda[1]}" in found.message and "12.8" in found.message


def test_bf16_on_a_t4_is_emulated_whatever_torch_says():
    found = line(facts(), "bf16")
    assert (found.status, "emulates" in found.message, "fp16" in found.hint) == ("warn", True, True)
    assert line(facts(driver=driver(L4)), "bf16").status == "pass"


def test_flash_attention_needs_the_gpu_and_the_build():
    assert "no FlashAttention" in line(facts(), "attention").message
    without = facts(driver=driver(L4), build=replace(BUILD, flash=False))
    assert "built without" in line(without, "attention").message
    assert line(facts(driver=driver(L4)), "attention").status == "pass"


def test_a_full_gpu_names_who_holds_it():
    found = line(facts(driver=driver(held(T4, 10 * GIB, 4242))), "GPU memory")
    assert found.status == "fail"
    assert "pid 4242 python (10.00 GiB)" in found.message and "kill 4242" in found.hint
    assert line(facts(driver=driver(held(T4, 3 * GIB, 4242))), "GPU memory").status == "warn"
    assert "does not say who" in line(facts(driver=driver(held(T4, 3 * GIB))), "GPU memory").message
    assert line(facts(driver=driver(held(T4, 200 * MIB))), "GPU memory").status == "pass"


def test_the_fullest_gpu_is_the_one_that_is_told():
    found = line(facts(driver=driver(T4, held(T4, 10 * GIB, 7)), on="kaggle-t4x2"), "GPU memory")
    assert (found.status, "pid 7" in found.message) == ("fail", True)


def test_fewer_gpus_than_the_target_has_fail():
    found = line(facts(on="kaggle-t4x2"), "GPUs used")
    assert (found.status, "has 2, shown are 1" in found.message) == ("fail", True)
    hidden = facts(on="kaggle-t4x2", driver=driver(T4, replace(T4, shown=False)))
    assert "CUDA_VISIBLE_DEVICES" in line(hidden, "GPUs used").message


def test_two_gpus_of_which_one_is_used_are_told():
    found = line(facts(on="kaggle-t4x2", driver=driver(T4, T4)), "GPUs used")
    assert (found.status, "2 are shown, one is used" in found.message) == ("warn", True)


def test_more_processes_than_gpus_fail():
    found = line(facts(processes={"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}), "GPUs used")
    assert (found.status, "2 processes" in found.message) == ("fail", True)
    assert line(facts(processes={"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}), "GPUs used").status == "pass"


def test_another_gpu_than_the_targets_is_told():
    assert line(facts(driver=driver(L4)), "GPUs used").status == "warn"


def test_no_gpu_fails_where_one_is_asked_for_and_is_mentioned_where_not():
    assert line(facts(driver=None), "GPU").status == "fail"
    assert "Accelerator" in line(facts(driver=None), "GPU").hint
    assert "shoestring plan --on kaggle-t4" in line(facts(driver=None, platform=None), "GPU").hint
    assert line(facts(on="local", driver=None), "GPU").status == "warn"
    assert line(facts(on="cpu", driver=None), "GPU").status == "pass"


def test_hidden_gpus_are_not_said_to_be_missing():
    host = replace(HOST, environment={"CUDA_VISIBLE_DEVICES": "-1"})
    found = line(facts(on="local", driver=driver(replace(T4, shown=False)), host=host), "GPU")
    assert (found.status, "'-1' hides 1 x Tesla T4" in found.message) == ("fail", True)


def test_a_driver_that_does_not_answer_is_a_line():
    found = line(facts(driver=None, driver_error="the driver does not answer: version mismatch"), "GPU")
    assert (found.status, "version mismatch" in found.message) == ("fail", True)


def test_what_a_cpu_is_asked_for_no_gpu_is_judged_by():
    names = {finding.name for finding in judged(facts(on="cpu", driver=driver(held(P100, 15 * GIB, 7))))}
    assert not names & {"kernels", "bf16", "attention", "GPU memory", "GPUs used"}
