import mmap
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pynvml
import pytest

from shoestring.training.monitor import sampling
from shoestring.training.monitor.sampling import Sample, read_load, sample


def test_resident_memory_grows_with_an_allocation():
    before = sample().rss_bytes
    with mmap.mmap(-1, 64 * 2**20) as pages:  # malloc could return memory that is resident already
        np.frombuffer(pages, dtype=np.uint8)[:] = 1
        assert sample().rss_bytes - before > 0.9 * len(pages)


def test_sampling_does_not_import_torch():
    imports = "import sys; from shoestring.training.monitor.sampling import sample"
    code = f"{imports}; sample(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_gpu_is_sampled_only_once_in_use(monkeypatch):
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert sample().gpu_allocated_bytes is None and sample().gpu_facts() == {}
    cuda.is_initialized = lambda: True
    cuda.device_count = lambda: 2
    cuda.memory_allocated, cuda.memory_reserved = lambda _: 1, lambda _: 2
    cuda.max_memory_allocated, cuda.max_memory_reserved = [0, 3].__getitem__, [0, 4].__getitem__
    cuda.current_device, cuda.get_device_properties = (
        lambda: 1,
        lambda number: SimpleNamespace(uuid=f"u{number}", total_memory=2**34),
    )
    requested_uuids = []
    monkeypatch.setattr(sampling, "_nvml_device", lambda uuid: requested_uuids.append(uuid))
    observed_sample = sample()
    assert requested_uuids == ["u1"]  # the device in use, independent of its CUDA index
    assert observed_sample == Sample(
        rss_bytes=observed_sample.rss_bytes,
        gpu_allocated_bytes=1,
        gpu_reserved_bytes=2,
        gpu_peak_allocated_bytes=3,
        gpu_peak_reserved_bytes=4,
        gpu_total_bytes=2**34,
    )
    assert observed_sample.gpu_facts() == {"gpu_allocated_bytes": 1, "gpu_utilisation": None, "gpu_watts": None}


def test_gpu_load_has_the_values_that_nvml_supports(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda device: SimpleNamespace(gpu=73))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda device: 61_500)
    assert read_load("device") == (0.73, 61.5)

    def unsupported(device):
        raise pynvml.NVMLError_NotSupported

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", unsupported)
    assert read_load("device") == (0.73, None)
    assert read_load(None) == (None, None)


def test_facts_that_cannot_be_measured_are_unknown(monkeypatch):
    def fail(*_):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "of the bindings with another driver")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", fail)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", fail)
    assert read_load("device") == (None, None)
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert sampling._nvml_device("another GPU") is None
    monkeypatch.setattr(sampling, "_process", lambda pid: SimpleNamespace(memory_info=Path("/no/file").stat))
    assert sample().rss_bytes is None


def test_no_nvml_device_without_a_driver():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert sampling._nvml_device("no such GPU") is None
    else:
        pytest.skip("this machine has an NVIDIA driver")
