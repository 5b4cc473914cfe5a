import os

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.finding import find
from shoestring.training.engine import environment as module
from shoestring.training.engine.environment import (
    bytes_digest,
    content_digest,
    differences,
    environment,
    kernel_facts,
    notes_on_machine,
    require_same,
)


@pytest.fixture
def current():
    return environment(Settings(micro_batch=4, precision="fp32"), torch.device("cpu"), find("temporal"))


def test_environment_has_versions_and_settings(current):
    assert current["torch"] == torch.__version__
    assert (current["micro_batch"], current["precision"], current["device"]) == (4, "fp32", "cpu")
    assert current["threads"] == torch.get_num_threads()


def test_differences_name_both_values(current):
    saved = current | {"torch": "2.6.0", "micro_batch": 8}
    saved.pop("threads")
    assert differences(saved, current) == [
        "micro_batch: saved with 8, now 4",
        f"threads: saved with None, now {current['threads']}",
        f"torch: saved with 2.6.0, now {torch.__version__}",
    ]


def test_difference_is_an_error_unless_allowed(current):
    assert require_same(current, current, allow_inexact=False) == []
    with pytest.raises(UsageError, match="--allow-inexact"):
        require_same(current | {"device": "cuda: Tesla T4"}, current, allow_inexact=False)
    assert require_same(current | {"device": "cuda: Tesla T4"}, current, allow_inexact=True)


def test_digest_depends_on_content_not_path(tmp_path):
    for name, text in (("a.csv", "1"), ("b.csv", "1"), ("c.csv", "2")):
        (tmp_path / name).write_text(text)
    assert (
        content_digest(tmp_path / "a.csv") == content_digest(tmp_path / "b.csv") != content_digest(tmp_path / "c.csv")
    )


def test_digest_of_a_directory_has_names_and_sizes(tmp_path):
    before = content_digest(tmp_path)
    (tmp_path / "more").mkdir()
    assert content_digest(tmp_path) == before
    (tmp_path / "more" / "a.tif").write_text("1")
    assert content_digest(tmp_path) != before


@pytest.mark.parametrize("limits", [(1024, 1 << 20), (1024, 40), (2, 40)], ids=["whole", "blocks", "some files"])
def test_changed_bytes_of_equal_size_are_a_difference(tmp_path, limits, monkeypatch):
    for name, value in zip(("_MOST_FILES", "_MOST_BYTES", "_BLOCK_BYTES"), (*limits, 8), strict=True):
        monkeypatch.setattr(module, name, value)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("0123456789" * 10)
    before, sizes = bytes_digest(tmp_path), content_digest(tmp_path)
    assert bytes_digest(tmp_path) == before
    (tmp_path / "b.csv").write_text("x" + "0123456789" * 9 + "012345678")
    assert content_digest(tmp_path) == sizes and bytes_digest(tmp_path) != before
    saved, present = {"bytes of data": before}, {"bytes of data": bytes_digest(tmp_path)}
    assert differences(saved, present) == ["data: the content of its files has changed since the checkpoint"]
    assert differences({}, present) == []  # a checkpoint of an earlier version


def test_file_that_cannot_be_read_is_no_error(tmp_path):
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    assert bytes_digest(tmp_path)


def test_digest_of_a_link_is_that_of_its_file(tmp_path):
    (tmp_path / "a.csv").write_text("1")
    (tmp_path / "link.csv").symlink_to("a.csv")
    assert content_digest(tmp_path / "link.csv") == content_digest(tmp_path / "a.csv")


SAVED = {
    "torch": "2.13.0",
    "kernels": {"BLAS on the CPU": "aa", "ATen on the CPU": "bb"},
    "host kernels": {},
    "machine": {"CPU": "AMD EPYC (25/17/1)", "OMP_NUM_THREADS": "1"},
}


def test_other_results_of_a_library_are_a_difference_with_its_cause():
    current = {
        **SAVED,
        "kernels": {"BLAS on the CPU": "cc", "ATen on the CPU": "bb"},
        "machine": {"CPU": "AMD EPYC (25/17/1)", "MKL_CBWR": "COMPATIBLE"},
    }
    line = (
        "kernels: BLAS on the CPU compute other bits than when the checkpoint was saved; "
        "the environment variable MKL_CBWR was not set, is COMPATIBLE (`unset MKL_CBWR` restores it)"
    )
    assert differences(SAVED, current) == [line]
    with pytest.raises(UsageError) as caught:
        require_same(SAVED, current, allow_inexact=False)
    assert list(caught.value.problems) == [line]
    # Another version has other kernels, which its own line says.
    assert differences(SAVED, current | {"torch": "2.14.0"}) == ["torch: saved with 2.13.0, now 2.14.0"]
    unknown = current | {"machine": SAVED["machine"]}
    assert differences(SAVED, unknown)[0].endswith("; nothing that is recorded of the machine has changed")


def test_another_machine_with_the_same_results_is_a_note():
    current = SAVED | {"machine": {"CPU": "Intel(R) Xeon(R) (6/85/7)", "OMP_NUM_THREADS": "1"}}
    assert differences(SAVED, current) == []
    assert notes_on_machine(SAVED, current) == [
        "the machine differs from the checkpoint's, and its kernels compute the same bits: "
        "CPU was AMD EPYC (25/17/1), is Intel(R) Xeon(R) (6/85/7)"
    ]
    assert notes_on_machine(SAVED, SAVED) == []
    library_that_is_new = SAVED | {"kernels": {**SAVED["kernels"], "FFT on the CPU": "dd"}}
    assert differences(SAVED, library_that_is_new) == []


def test_cpu_beside_a_gpu_computes_the_data_alone():
    saved = {"kernels": {"cuBLAS": "aa"}, "host kernels": {"ATen": "bb"}, "machine": {"CPU": "one"}}
    current = {**saved, "host kernels": {"ATen": "cc"}, "machine": {"CPU": "another"}}
    assert differences(saved, current) == []
    (note,) = notes_on_machine(saved, current)
    assert "on the CPU, ATen compute other bits" in note and note.endswith("; CPU was one, is another")


def test_checkpoint_without_results_of_kernels_is_a_note():
    (note,) = notes_on_machine({"torch": "2.13.0"}, SAVED)
    assert "did not record" in note
    assert differences({"torch": "2.13.0"}, SAVED) == []


def test_kernels_of_a_cpu_update_are_those_of_the_cpu():
    facts = kernel_facts(torch.device("cpu"), torch.nn.Linear(2, 2))
    assert {"ATen on the CPU", "BLAS on the CPU", "numpy on the CPU"} <= facts["kernels"].keys()
    assert not facts["host kernels"] and facts["machine"]["CPU"]
