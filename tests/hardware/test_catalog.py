"""The catalogue: sources of all numbers, consistency of the facts, and the lookup of targets by name."""

import json
import subprocess
import sys

import pytest

from shoestring.base.errors import UsageError
from shoestring.base.units import GIB, bytes_text
from shoestring.hardware.catalog import DEVICES, PLATFORMS, Device
from shoestring.hardware.targets import PROBED, find, known, machines, with_machines

RATES = ("fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops")
FACTS = ("memory_bytes", "compute_capability", "bandwidth", "context_bytes", "peer_access", "pcie", *RATES)
LIMITS = ("session_hours", "weekly_gpu_hours", "disk_bytes", "ram_bytes", "cores")

all_devices = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)


@all_devices
def test_exactly_the_known_facts_have_sources(device: Device) -> None:
    known = {fact for fact in FACTS if getattr(device, fact) not in (None, "")}
    assert known | {f"sustained.{rate}" for rate in device.sustained} == device.sources.keys()


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
def test_exactly_the_known_limits_have_sources(platform) -> None:
    assert {limit for limit in LIMITS if getattr(platform, limit) is not None} == platform.sources.keys()
    assert platform.sign


@all_devices
def test_capabilities_agree_with_the_rates(device: Device) -> None:
    tensor_cores, ampere = device.compute_capability >= (7, 0), device.compute_capability >= (8, 0)
    assert (device.fp16_flops is not None) == tensor_cores
    assert (device.bf16_flops is not None) == (device.tf32_flops is not None) == ampere
    assert ("bf16" in device.precisions) == device.flash_attention == ampere
    assert ("bf16" in device.lacks) == (not ampere)


@all_devices
def test_figures_are_plausible_in_their_units(device: Device) -> None:
    low, typical, high = device.context_bytes
    assert 100 * 2**20 < low <= typical <= high < 2**30
    assert 7 * GIB < device.memory_bytes < 141 * GIB
    assert 1e11 < device.bandwidth < 1e13
    assert 1e12 < device.fp32_flops <= (device.fp16_flops or device.fp32_flops) < 1e15


def test_memory_is_less_than_the_nominal_size() -> None:
    nominal_gib = {"a100-40": 40, "a100-80": 80, "h100": 80, "rtx3060": 12, "rtx3090": 24, "rtx4060": 8, "rtx4090": 24}
    nominal_gib |= {"t4": 16, "p100": 16, "v100": 16, "l4": 24, "a10": 24, "h200": 141, "rtxpro6000": 96}
    assert nominal_gib.keys() == DEVICES.keys()
    for name, size in nominal_gib.items():
        assert 0.9 * size * GIB < DEVICES[name].memory_bytes < size * GIB


def test_the_t4_of_kaggle() -> None:
    t4 = DEVICES["t4"]
    assert bytes_text(t4.memory_bytes) == "14.56 GiB"
    assert t4.precisions == ("fp32", "fp16")
    assert not t4.flash_attention
    assert any("FlashAttention" in feature for feature in t4.lacks)
    assert t4.context_bytes[1] == 140.875 * 2**20


def test_driver_names_are_unique() -> None:
    names = [name for device in DEVICES.values() for name in device.nvml_names]
    assert len(names) == len(set(names))


def test_kaggle_pair_has_two_t4s_and_same_limits() -> None:
    pair, single = find("kaggle-t4x2"), find("kaggle-t4")
    assert (pair.gpus, pair.processes, single.gpus) == (2, 2, 1)
    assert pair.device == single.device == DEVICES["t4"]
    assert pair.platform == single.platform == PLATFORMS["kaggle"]
    assert (pair.platform.session_hours, pair.platform.weekly_gpu_hours) == (12, 30)


def test_gpu_is_a_target_without_limits() -> None:
    for name, device in DEVICES.items():
        assert (find(name).device, find(name).gpus, find(name).platform) == (device, 1, None)


def test_machines_of_kaggle_have_its_names_and_its_disk() -> None:
    rows = {name: (target.machine_shape, target.gpus) for name, target in machines("kaggle").items()}
    assert list(rows.items()) == [
        ("kaggle-t4x2", ("NvidiaTeslaT4", 2)),
        ("kaggle-t4", ("NvidiaTeslaT4", 1)),
        ("kaggle-l4x4", ("NvidiaL4", 4)),
        ("kaggle-l4", ("NvidiaL4X1", 1)),
        ("kaggle-rtxpro6000", ("NvidiaRtxPro6000", 1)),
        ("kaggle-a100", ("NvidiaTeslaA100", 1)),
        ("kaggle-h100", ("NvidiaH100", 1)),
    ]
    for name, target in machines("kaggle").items():
        assert target.platform and target.platform.disk_bytes == 19_500_000_000
        assert target.depends_on_account is ("t4" not in name)
        # Those of the machine with T4s are known, of the others no source says it.
        known_host = {"ram_bytes", "cores"} & target.platform.sources.keys()
        assert (target.platform.ram_bytes is None) is (target.platform.cores is None) is target.depends_on_account
        assert bool(known_host) is not target.depends_on_account
    assert find("kaggle-a100").device == DEVICES["a100-40"] and "40 GB or 80 GB" in find("kaggle-a100").notes[1]
    assert not find("colab-t4").machine_shape and not machines("nowhere")


def test_a_platform_with_several_machines_stands_for_all_of_them() -> None:
    assert with_machines(["t4", "kaggle", "kaggle-t4", "colab"]) == ["t4", *machines("kaggle"), "colab"]


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("kaggle-t4-x2", "there is no target 'kaggle-t4-x2'", "did you mean kaggle-t4x2?"),
        ("locale", "there is no target 'locale'", "did you mean local?"),
        ("kaggle-p100", "no kernels for a P100 (sm_60), and Kaggle has retired it", "--on kaggle-t4x2"),
        ("NvidiaTeslaP100", "no kernels for a P100 (sm_60), and Kaggle has retired it", "--on kaggle-t4x2"),
        ("kaggle-tpuv5e8", "TPUs are not supported", "--on kaggle-t4x2"),
        ("TpuV6E8", "TPUs are not supported", "--on kaggle-t4x2"),
        ("kaggle", "7 machines, of which one has to be named", "available: kaggle-t4x2, kaggle-t4, kaggle-l4x4,"),
        ("NvidiaTeslaT4", "there is no target 'NvidiaTeslaT4'", "it is what Kaggle calls kaggle-t4x2 and kaggle-t4"),
    ],
)
def test_what_is_not_a_target_is_an_error_with_what_to_take_instead(name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        find(name)
    assert message in error.value.message and error.value.hint and hint in error.value.hint


def test_a_p100_is_a_target_without_a_platform() -> None:
    assert any("kernels" in note for note in DEVICES["p100"].notes)


def test_known_targets_do_not_include_this_machine() -> None:
    assert not PROBED.keys() & known().keys()


def test_target_is_json() -> None:
    for target in known().values():
        target_json = json.loads(json.dumps(target.json()))
        assert target_json["device"]["memory_bytes"] == target.device.memory_bytes
        assert target_json["device"]["precisions"] == list(target.device.precisions)


def test_devices_and_targets_are_hashable() -> None:
    assert len({*DEVICES.values(), *known().values()}) == len(DEVICES) + len(known())


def test_catalogue_and_probe_do_not_import_torch() -> None:
    code = (
        "import sys; from shoestring.hardware import probe, targets; "
        "targets.known(); assert 'numpy' not in sys.modules; probe.machine(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
