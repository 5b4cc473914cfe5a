"""Processes on GPUs and their memory, from a fake driver."""

import os
import sys
from types import SimpleNamespace

import psutil
import pytest

from shoestring.base.errors import RunError
from shoestring.base.units import MIB
from shoestring.hardware.occupancy import occupancy
from tests.hardware.test_probe import T4, NoLibraryError, NVMLError, fake_nvml


def fake_nvml_with_processes(*cards, compute=(), graphics=(), **options):
    """Return the fake NVML of `test_probe` with processes of (pid, bytes) on the first card."""

    def query_returning(processes):
        def query(card):
            if processes is None:
                raise NVMLError("not supported")
            return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes] if card is cards[0] else []

        return query

    base = fake_nvml(*cards, **options)
    memory = base.nvmlDeviceGetMemoryInfo
    return SimpleNamespace(
        **{
            **vars(base),
            "nvmlDeviceGetMemoryInfo": lambda card, version: SimpleNamespace(
                **vars(memory(card, version)), used=100 * MIB
            ),
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12080,
            "nvmlDeviceGetComputeRunningProcesses": query_returning(compute),
            "nvmlDeviceGetGraphicsRunningProcesses": query_returning(graphics),
        }
    )


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda *cards, **options: monkeypatch.setitem(
        sys.modules, "pynvml", fake_nvml_with_processes(*cards, **options)
    )


def test_cards_with_their_processes(driver):
    own_pid = os.getpid()
    driver(
        T4,
        ("NVIDIA L4", 23_034, 471, (8, 9)),
        compute=[(own_pid, 90 * MIB), (2**22 + 7, None)],
        graphics=[(own_pid, 90 * MIB)],
    )
    state = occupancy()
    assert (state.version, state.cuda) == ("580.65.06", (12, 8))
    first, second = state.cards
    assert (first.title, first.capability, first.usable_bytes) == ("Tesla T4", (7, 5), (15_360 - 449) * MIB)
    assert first.free_bytes == (15_360 - 449 - 100) * MIB
    own_process, other_process = first.holders
    assert (own_process.pid, own_process.bytes) == (own_pid, 90 * MIB)
    assert own_process.name == psutil.Process().name()
    assert (other_process.name, other_process.bytes) == ("", None)
    assert second.holders == ()


def test_driver_without_process_information(driver):
    driver(T4, compute=None, graphics=None)
    assert occupancy().cards[0].holders == ()


def test_hidden_cards_are_marked(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver(T4, T4)
    driver(T4, ("NVIDIA L4", 23_034, 471, (8, 9)))
    assert [card.is_visible for card in occupancy().cards] == [False, True]


def test_no_driver_and_unresponsive_driver(driver):
    driver(broken=NoLibraryError)
    assert occupancy() is None
    driver(T4, broken=NVMLError)
    with pytest.raises(RunError, match="does not respond"):
        occupancy()
