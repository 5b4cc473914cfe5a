"""Buffers by name are the same, where torch keeps them or by public means."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoestring.techniques import slots


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = torch.zeros(2)
        self.register_buffer("first", shared)
        self.register_buffer("second", shared)
        self.register_buffer("unsaved", torch.ones(1), persistent=False)
        self.register_buffer("nothing", None)
        self.inner = nn.BatchNorm1d(2)


@pytest.fixture(params=["privately", "publicly"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "publicly":
        monkeypatch.setattr(slots, "_slots", lambda module: None)
    return str(request.param)


def test_they_are_the_modules_own(way: str) -> None:
    module: Any = Holding()
    found = {name: id(each) for name, each in slots.buffers(module).items() if each is not None}
    assert found == {name: id(getattr(module, name)) for name in ("first", "second", "unsaved")}


def test_one_that_is_put_is_the_modules_and_is_saved_as_before(way: str) -> None:
    module: Any = Holding()
    names, new = list(module.state_dict()), torch.ones(2) * 3
    for name in ("second", "unsaved"):
        slots.put(module, name, new)
    assert module.second is new and module.unsaved is new and module.first is not new
    assert list(module.state_dict()) == names and "second" not in vars(module)


def test_torch_keeps_them_where_they_are_looked_for() -> None:
    held = slots._slots(Holding())
    assert held is not None and isinstance(held["first"], Tensor)


def test_a_module_without_that_place_has_none() -> None:
    class Elsewhere:
        pass

    anywhere: Any = Elsewhere()
    assert slots._slots(anywhere) is None
