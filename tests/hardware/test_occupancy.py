"""Who holds the GPUs' memory, seen through a driver that is made up."""

import os
import sys
from types import SimpleNamespace

import psutil
import pytest

from shoestring.errors import RunError
from shoestring.hardware.occupancy import occupancy
from shoestring.units import MIB
from tests.hardware.test_probe import T4, NoLibraryError, NVMLError, nvml


def with_processes(*cards, compute=(), graphics=(), **kind):
    """The made-up NVML of `test_probe`, whose first card has processes of (pid, bytes)."""

    def running(found):
        def ask(card):
            if found is None:
                raise NVMLError("not supported")
            return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in found] if card is cards[0] else []

        return ask

    made = nvml(*cards, **kind)
    memory = made.nvmlDeviceGetMemoryInfo
    return SimpleNamespace(
        **{
            **vars(made),
            "nvmlDeviceGetMemoryInfo": lambda card, version: SimpleNamespace(
                **vars(memory(card, version)), used=100 * MIB
            ),
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12080,
            "nvmlDeviceGetComputeRunningProcesses": running(compute),
            "nvmlDeviceGetGraphicsRunningProcesses": running(graphics),
        }
    )


@pytest.fixture
def driver(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda *cards, **kind: monkeypatch.setitem(sys.modules, "pynvml", with_processes(*cards, **kind))


def test_cards_with_who_holds_them(driver):
    me = os.getpid()
    driver(
        T4, ("NVIDIA L4", 23_034, 471, (8, 9)), compute=[(me, 90 * MIB), (2**22 + 7, None)], graphics=[(me, 90 * MIB)]
    )
    found = occupancy()
    assert (found.version, found.cuda) == ("580.65.06", (12, 8))
    first, second = found.cards
    assert (first.title, first.capability, first.usable_bytes) == ("Tesla T4", (7, 5), (15_360 - 449) * MIB)
    assert first.free_bytes == (15_360 - 449 - 100) * MIB
    mine, other = first.holders
    assert (mine.pid, mine.bytes) == (me, 90 * MIB)
    assert mine.name == psutil.Process().name()
    assert (other.name, other.bytes) == ("", None)
    assert second.holders == ()


def test_a_driver_that_does_not_tell_of_processes(driver):
    driver(T4, compute=None, graphics=None)
    assert occupancy().cards[0].holders == ()


def test_hidden_cards_are_told_as_hidden(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver(T4, T4)
    driver(T4, ("NVIDIA L4", 23_034, 471, (8, 9)))
    assert [card.shown for card in occupancy().cards] == [False, True]


def test_no_driver_and_one_that_does_not_answer(driver):
    driver(broken=NoLibraryError)
    assert occupancy() is None
    driver(T4, broken=NVMLError)
    with pytest.raises(RunError, match="does not answer"):
        occupancy()
