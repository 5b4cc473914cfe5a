"""Freed memory stays with a process that trains on a CPU, and is returned at the end; the bits are the same."""

import platform
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn

from shoestring.base.units import MIB
from shoestring.training.engine import malloc
from shoestring.training.engine.malloc import keeping_freed_memory

CPU = torch.device("cpu")
PAGE = resource.getpagesize()


@pytest.fixture(autouse=True)
def own_choice(monkeypatch):
    for name in malloc._CHOSEN_BY_USER:
        monkeypatch.delenv(name, raising=False)


def allocate(blocks=20, size=8 * MIB):
    """Write so many blocks, free all of them, and return the number of their pages that the kernel had to provide."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [b"x" * size for _ in range(blocks)]
    del held
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (blocks * size // PAGE)


def check_pages():
    """The body of the test of pages; it needs a process whose heap no other test has used."""
    allocate()
    assert allocate() > 0.5
    with keeping_freed_memory(CPU):
        allocate(blocks=2, size=64 * MIB)
        assert allocate(blocks=2, size=64 * MIB) > 0.5  # large blocks are returned at once
        allocate()
        assert allocate() < 0.1
        held = [b"x" * (8 * MIB) for _ in range(20)]
        last = b"x" * MIB  # above the others, so that they are not at the end of the heap
        del held
        resident_bytes = psutil.Process().memory_info().rss
    assert psutil.Process().memory_info().rss < resident_bytes - 100 * MIB
    del last
    allocate()
    assert allocate() > 0.5


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_pages_are_provided_once_within_the_context_and_returned_after_it():
    code = f"from {__name__} import check_pages; check_pages()"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)


@pytest.mark.parametrize("case", ["gpu", "musl", *malloc._CHOSEN_BY_USER])
def test_nothing_changes_elsewhere(monkeypatch, case):
    calls = []
    library = SimpleNamespace(mallopt=lambda *values: calls.append(values), malloc_trim=lambda _: None)
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda _: SimpleNamespace() if case == "musl" else library)
    if case in malloc._CHOSEN_BY_USER:
        monkeypatch.setenv(case, "1")
    with keeping_freed_memory(torch.device("cuda" if case == "gpu" else "cpu")):
        assert calls == []
    if case == "gpu":
        with keeping_freed_memory(CPU):
            assert len(calls) == 2


def trained_bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 3, 64, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [value.numpy().tobytes() for value in model.state_dict().values()]


def test_bits_are_the_same():
    without = trained_bits()
    with keeping_freed_memory(CPU):
        assert trained_bits() == without
