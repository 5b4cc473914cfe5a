"""Buffers by name are the same with torch's private dictionary and with the public interface."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoestring.techniques import slots


class BufferModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = torch.zeros(2)
        self.register_buffer("first", shared)
        self.register_buffer("second", shared)
        self.register_buffer("unsaved", torch.ones(1), persistent=False)
        self.register_buffer("nothing", None)
        self.inner = nn.BatchNorm1d(2)


@pytest.fixture(params=["private", "public"])
def interface(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "public":
        monkeypatch.setattr(slots, "_slots", lambda module: None)
    return str(request.param)


def test_buffers_are_those_of_the_module(interface: str) -> None:
    module: Any = BufferModule()
    buffer_ids = {name: id(buffer) for name, buffer in slots.buffers(module).items() if buffer is not None}
    assert buffer_ids == {name: id(getattr(module, name)) for name in ("first", "second", "unsaved")}


def test_replaced_buffer_keeps_its_place_in_the_state_dict(interface: str) -> None:
    module: Any = BufferModule()
    names, new = list(module.state_dict()), torch.ones(2) * 3
    for name in ("second", "unsaved"):
        slots.set_buffer(module, name, new)
    assert module.second is new and module.unsaved is new and module.first is not new
    assert list(module.state_dict()) == names and "second" not in vars(module)


def test_torch_has_the_private_dictionary() -> None:
    buffers = slots._slots(BufferModule())
    assert buffers is not None and isinstance(buffers["first"], Tensor)


def test_module_without_the_private_dictionary_is_recognized() -> None:
    class OtherModule:
        pass

    module: Any = OtherModule()
    assert slots._slots(module) is None
