"""The order that events give to copies and computation on a GPU, with streams whose operations are not executed.

Each stream has a vector clock, as have events: an operation comes after another one only if a chain of events says so.
"""

from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
import torch

from shoestring.techniques.streaming.slots import CudaSlot


class Stream:
    def __init__(self) -> None:
        self.clock: dict[int, int] = {id(self): 0}

    def operate(self) -> dict[int, int]:
        """Add an operation, and return its time."""
        self.clock[id(self)] += 1
        return dict(self.clock)

    def wait_event(self, event: "Event") -> None:
        self.clock = {key: max(self.clock.get(key, 0), event.clock.get(key, 0)) for key in self.clock | event.clock}

    def is_after(self, operation: dict[int, int]) -> bool:
        return all(self.clock.get(key, 0) >= value for key, value in operation.items())


class Event:
    clock: dict[int, int]

    def __init__(self) -> None:
        self.clock = {}

    def record(self, stream: Stream) -> None:
        self.clock = dict(stream.clock)


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    """The stream that computes, which a test may replace."""
    current = [Stream()]

    @contextmanager
    def use(stream: Stream) -> Any:
        current.insert(0, stream)
        yield
        current.pop(0)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current[0])
    monkeypatch.setattr(torch.cuda, "stream", use)
    return current


class Slot(CudaSlot):
    """A slot that knows what has used it since the latest copy."""

    def __init__(self, copying: Any) -> None:
        super().__init__(torch.zeros(8, dtype=torch.uint8), copying)
        self.uses: list[dict[int, int]] = []
        self.copy: dict[int, int] = {}


@pytest.mark.parametrize("streams", [1, 2])
def test_copies_and_computation_wait_for_each_other(
    computing: list[Stream], streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, copying, users = Random(0), Stream(), [Stream() for _ in range(streams)]
    slots = [Slot(copying), Slot(copying)]
    copy = torch.Tensor.copy_

    def copy_in_stream(target: Any, source: Any, *, non_blocking: bool = False) -> Any:
        assert non_blocking and computing[0] is copying
        slot = next(slot for slot in slots if slot.buffer.data_ptr() == target.data_ptr())
        assert all(copying.is_after(use) for use in slot.uses), "the copy overwrites what is in use"
        slot.uses.clear()
        slot.copy = copying.operate()
        return copy(target, source)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_in_stream)
    for _ in range(200):
        slot = random.choice(slots)
        computing[0] = random.choice(users)
        if random.random() < 0.4 or not slot.copy:
            slot.fill(torch.ones(8, dtype=torch.uint8))
        for _ in range(random.randrange(3)):
            slot.wait()
            assert computing[0].is_after(slot.copy), "the computation does not wait for the copy"
            slot.uses.append(computing[0].operate())
