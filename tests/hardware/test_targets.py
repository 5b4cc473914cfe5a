"""Files of measured rates as targets."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.units import GIB
from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES
from shoestring.hardware.targets import find, is_here, on_this_machine, with_rates
from tests.hardware.measured_files import CPU, GPU, UNLISTED, write


def test_file_of_a_listed_gpu_has_the_facts_of_the_catalogue(tmp_path: Path) -> None:
    path = write(tmp_path, GPU)
    target = find(str(path))
    t4 = DEVICES["t4"]
    assert (target.name, target.gpus, target.platform) == (str(path), 2, None)
    assert (target.device.memory_bytes, target.device.context_bytes) == (14 * GIB, t4.context_bytes)
    assert target.device.measured and target.device.measured.file == str(path)
    assert target.json()["device"]["measured"] == {"file": str(path), "date": GPU.date, "warnings": ()}


def test_file_of_another_gpu_is_a_target(tmp_path: Path) -> None:
    device = find(str(write(tmp_path, UNLISTED))).device
    assert (device.title, device.kind, device.precisions) == ("NVIDIA RTX 9", "cuda", ("fp32", "fp16", "bf16"))
    assert device.fp32_flops is None and device.context_bytes[0] > 0


def test_file_of_a_cpu_is_a_target(tmp_path: Path) -> None:
    target = find(str(write(tmp_path, CPU)))
    assert (target.device.kind, target.gpus, target.device.context_bytes) == ("cpu", 0, (0, 0, 0))
    assert target.device.precisions == ("fp32",)


def test_missing_file_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"nothing\.json cannot be read: No such file"):
        find("nothing.json")


def test_this_machine_takes_the_rates_of_its_own_device_only(tmp_path: Path) -> None:
    other = write(tmp_path, CPU)
    here = replace(CPU, device=replace(CPU.device, title=probe.local_cpu().device.title))
    own = write(tmp_path, here, "own.json")
    assert on_this_machine(str(other)) == probe.local_cpu()
    device = on_this_machine(str(own)).device
    assert device.measured and replace(device, measured=None) == probe.local_cpu().device
    assert is_here(str(own)) and is_here("local") and not is_here("kaggle-t4")


def test_other_targets_keep_their_rates() -> None:
    assert with_rates(find("kaggle-t4"), CPU) == find("kaggle-t4")
    assert with_rates(find("kaggle-t4"), GPU).device.measured is GPU
