import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pynvml
import pytest

from shoestring.monitor import sampling
from shoestring.monitor.sampling import Sample, busy, sample


def test_resident_memory_grows_with_what_is_held():
    before = sample().rss_bytes
    held = np.ones(64 * 2**20, dtype=np.uint8)
    assert sample().rss_bytes - before > 0.9 * held.nbytes


def test_sampling_does_not_import_torch():
    code = "from shoestring.monitor import sampling as s; s.sample(); import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_gpu_is_asked_only_once_it_is_in_use(monkeypatch):
    cuda = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert sample().gpu_allocated_bytes is None and sample().gpu_facts() == {}
    cuda.is_initialized = lambda: True
    cuda.memory_allocated, cuda.memory_reserved = lambda: 1, lambda: 2
    cuda.max_memory_allocated, cuda.max_memory_reserved = lambda: 3, lambda: 4
    cuda.current_device, cuda.get_device_properties = lambda: 1, lambda number: SimpleNamespace(uuid=f"u{number}")
    asked = []
    monkeypatch.setattr(sampling, "_board", lambda uuid: asked.append(uuid))
    seen = sample()
    assert asked == ["u1"]  # the device in use, however CUDA numbers it
    assert seen == Sample(
        rss_bytes=seen.rss_bytes,
        gpu_allocated_bytes=1,
        gpu_reserved_bytes=2,
        gpu_peak_allocated_bytes=3,
        gpu_peak_reserved_bytes=4,
    )
    assert seen.gpu_facts() == {"gpu_allocated_bytes": 1, "gpu_utilisation": None, "gpu_watts": None}


def test_how_busy_the_gpu_is_as_far_as_its_board_tells(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda board: SimpleNamespace(gpu=73))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda board: 61_500)
    assert busy("board") == (0.73, 61.5)

    def silent(board):
        raise pynvml.NVMLError_NotSupported

    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", silent)
    assert busy("board") == (0.73, None)
    assert busy(None) == (None, None)


def test_without_a_driver_there_is_no_board():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert sampling._board("of no GPU") is None
    else:
        pytest.skip("this machine has a driver")
