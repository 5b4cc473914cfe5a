"""Detection of this machine with fake drivers and containers."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from shoestring.base.errors import RunError
from shoestring.base.units import GIB, MIB
from shoestring.hardware import probe
from shoestring.hardware.catalog import DEVICES, PLATFORMS
from shoestring.hardware.targets import find

T4 = ("Tesla T4", 15_360, 449, (7, 5))


class NVMLError(Exception):
    pass


class NoLibraryError(NVMLError):
    pass


class NoDriverError(NVMLError):
    pass


def fake_nvml(*cards, broken: type[NVMLError] | None = None) -> SimpleNamespace:
    """Return a fake NVML with `cards` of (name, total MiB, reserved MiB, compute capability), or a broken one."""

    def init() -> None:
        if broken:
            raise broken("Driver/library version mismatch")

    def memory(card, version: int) -> SimpleNamespace:
        assert version == 2
        return SimpleNamespace(total=card[1] * MIB, reserved=card[2] * MIB)

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVMLError_LibraryNotFound=NoLibraryError,
        NVMLError_DriverNotLoaded=NoDriverError,
        nvmlMemory_v2=2,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.65.06",
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=lambda index: cards[index],
        nvmlDeviceGetUUID=lambda card: f"GPU-{cards.index(card)}",
        nvmlDeviceGetName=lambda card: card[0],
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetCudaComputeCapability=lambda card: card[3],
    )


@pytest.fixture
def driver(monkeypatch):
    """A function that installs a fake NVML."""
    for name in ("CUDA_VISIBLE_DEVICES", *(platform.sign for platform in PLATFORMS.values())):
        monkeypatch.delenv(name, raising=False)
    cached_functions = (probe.local, probe.local_cpu, probe.gpus)
    for function in cached_functions:
        function.cache_clear()
    yield lambda *cards, **options: monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(*cards, **options))
    for function in cached_functions:
        function.cache_clear()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_known_gpu_has_catalogue_facts_and_driver_memory(driver) -> None:
    driver(T4, ("Tesla T4", 15_360, 450, (7, 5)))
    target = find("local")
    assert (target.name, target.device.name, target.gpus) == ("local", "t4", 2)
    assert target.device.memory_bytes == 14_910 * MIB
    assert target.device.fp16_flops == DEVICES["t4"].fp16_flops
    assert "NVML" in target.device.sources["memory_bytes"]


def test_unknown_gpu_has_no_rates_but_a_note(driver) -> None:
    driver(("NVIDIA GeForce GTX 1080 Ti", 11_264, 258, (6, 1)))
    device = probe.local().device
    assert device.name == "nvidia-geforce-gtx-1080-ti"
    assert (device.memory_bytes, device.compute_capability) == (11_006 * MIB, (6, 1))
    assert device.fp32_flops is device.fp16_flops is device.bandwidth is None
    assert any("rates" in note for note in device.notes)
    assert device.precisions == ("fp32", "fp16")


def test_same_name_with_other_memory_is_another_card(driver) -> None:
    driver(("NVIDIA GeForce RTX 3060", 12_288, 378, (8, 6)))
    assert probe.local().device.name == "rtx3060"
    probe.local.cache_clear(), probe.gpus.cache_clear()
    driver(("NVIDIA GeForce RTX 3060", 8_192, 350, (8, 6)))
    assert probe.local().device.name == "rtx3060-8"


def test_different_gpus_are_not_counted_together(driver) -> None:
    driver(T4, ("NVIDIA L4", 23_034, 471, (8, 9)), T4)
    assert (probe.local().device.name, probe.local().gpus) == ("t4", 2)


def test_only_visible_gpus_count(driver, monkeypatch) -> None:
    driver(T4, ("NVIDIA L4", 23_034, 471, (8, 9)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.name for gpu in probe.gpus()] == ["l4"]


@pytest.mark.parametrize(
    ("visible_devices", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2, 0", [2, 0]),
        ("1,7,0", [1]),
        ("GPU-b", [2]),
        ("GPU-a", []),  # a prefix of two UUIDs
        ("GPU-a1,GPU-b2", [0, 2]),
    ],
)
def test_visible(visible_devices, indices) -> None:
    assert probe.visible(["GPU-a1", "GPU-a2", "GPU-b2"], visible_devices) == indices


@pytest.mark.parametrize("broken", [NoLibraryError, NoDriverError])
def test_machine_without_driver_is_a_cpu(driver, broken) -> None:
    driver(broken=broken)
    target = find("local")
    assert (target.name, target.device.kind, target.gpus, target.processes) == ("local", "cpu", 0, 1)
    assert target.device.precisions == ("fp32",)
    assert target.device.lacks == ("a GPU: it trains in fp32 only",)
    assert target.device.fp32_flops > 1e8 and target.device.bandwidth > 1e8
    assert "measured on this machine" in target.device.sources["fp32_flops"]
    assert target.device.memory_bytes == target.platform.ram_bytes
    assert find("cpu").device is target.device


def test_unresponsive_driver_is_an_error(driver) -> None:
    driver(T4, broken=NVMLError)
    with pytest.raises(RunError, match="version mismatch") as error:
        probe.local()
    assert "nvidia-smi" in error.value.hint


def test_known_platform_keeps_its_limits(driver, monkeypatch) -> None:
    driver(T4)
    assert probe.local().platform.session_hours is None
    probe.local.cache_clear()
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    platform = probe.local().platform
    assert (platform.name, platform.session_hours) == ("kaggle", 12)
    assert (platform.cores, platform.ram_bytes) == (probe.cores(), probe.ram_bytes())


def test_machine_facts_are_json(driver) -> None:
    driver(T4)
    facts = probe.machine()
    assert facts["gpus"] == [{"name": "NVIDIA T4", "memory_bytes": 14_911 * MIB}]
    assert facts["driver"] == "580.65.06"
    assert facts == json.loads(json.dumps(facts))


def test_machine_without_limits_is_fully_usable(tmp_path) -> None:
    assert probe.ram_bytes(tmp_path) == psutil.virtual_memory().total
    assert probe.cores(tmp_path) == len(os.sched_getaffinity(0))


def test_cgroup_v2_limits(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/pod/container/memory.max": "max\n",
            "sys/fs/cgroup/pod/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/container/cpu.max": "350000 100000\n",
        },
    )
    assert probe.ram_bytes(root) == GIB
    assert probe.cores(root) == 3


def test_cgroup_v1_limits(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    root = write(
        tmp_path,
        {
            # The path is the host's; in the container only the root of it is mounted.
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert probe.ram_bytes(root) == 2 * GIB
    assert probe.cores(root) == 1  # half a core is still one thread


def test_unset_cgroup_v1_limits(tmp_path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        },
    )
    assert probe.ram_bytes(root) == psutil.virtual_memory().total
    assert probe.cores(root) == len(os.sched_getaffinity(0))


def test_free_memory_within_a_cgroup(tmp_path) -> None:
    version_2 = {
        "proc/self/cgroup": "0::/pod\n",
        "sys/fs/cgroup/pod/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{900 * MIB}\n",
        "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {100 * MIB}\n",
    }
    assert probe.ram_free_bytes(write(tmp_path / "2", version_2)) == GIB - 800 * MIB
    version_1 = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
    }
    assert probe.ram_free_bytes(write(tmp_path / "1", version_1)) == 0
    assert 0 < probe.ram_free_bytes(tmp_path / "none") <= psutil.virtual_memory().total


def test_cpu_model_name(tmp_path) -> None:
    root = write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n"})
    assert probe.cpu_model(root) == "A CPU @ 2 GHz"
