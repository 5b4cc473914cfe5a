import subprocess
import sys
from types import SimpleNamespace

import numpy as np

from shoestring.monitor.sampling import Sample, sample


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
    assert sample().gpu_allocated_bytes is None
    cuda.is_initialized = lambda: True
    cuda.memory_allocated, cuda.memory_reserved = lambda: 1, lambda: 2
    cuda.max_memory_allocated, cuda.max_memory_reserved = lambda: 3, lambda: 4
    seen = sample()
    assert seen == Sample(
        rss_bytes=seen.rss_bytes,
        gpu_allocated_bytes=1,
        gpu_reserved_bytes=2,
        gpu_peak_allocated_bytes=3,
        gpu_peak_reserved_bytes=4,
    )
