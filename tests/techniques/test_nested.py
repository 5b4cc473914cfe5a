"""Batches of any structure."""

import dataclasses
from collections import OrderedDict, UserDict, namedtuple
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from shoestring.base.errors import UsageError
from shoestring.techniques import nested
from shoestring.training.data.batches import to_device

META = torch.device("meta")
Pair = namedtuple("Pair", "x y")
Color = Enum("Color", "RED")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Tensor
    count: int = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "count", 7)


@dataclasses.dataclass
class Nested:
    pairs: list
    note: str = "a"


@attrs.define
class Attrs:
    x: Tensor


class Returning:
    """Returns a new object, as `Tensor.to` does."""

    def __init__(self, x):
        self.x = x

    def to(self, device):
        return Returning(self.x.to(device))


class InPlace(Returning):
    def to(self, device):
        self.x = self.x.to(device)


class Masks(list):
    """A list with another constructor."""

    def __init__(self, size, *masks):
        super().__init__(masks)
        self.size = size


@dataclasses.dataclass
class Derived:
    """Has an attribute that is no field."""

    x: Tensor

    def __post_init__(self):
        self.squares = [self.x**2]


def cyclic():
    batch = {"images": Nested([torch.zeros(1)])}
    batch["images"].pairs.append((1, batch["images"]))
    return [batch]


class Options(dict):
    """A mapping with an attribute."""


def batch():
    options = Options(x=torch.zeros(2))
    options.note = "kept"
    return (
        Nested([Pair(torch.ones(1), 3), Frozen(torch.zeros(2, 3))]),
        {"user": UserDict(x=torch.zeros(4)), "options": options, "attrs": Attrs(torch.zeros(1))},
        OrderedDict(x=torch.zeros(2)),
        BaseModelOutput(last_hidden_state=torch.zeros(2)),
        [InPlace(torch.zeros(5)), Returning(torch.zeros(6))],
        (Masks(5, torch.zeros(1)), Derived(torch.zeros(3))),
        (None, "text", 1.5, np.float32(2), np.zeros(3), Path("a"), Color.RED, torch.float16, torch.Size([2])),
    )


def test_all_containers_are_moved_and_plain_values_stay():
    original = batch()
    moved = to_device(original, META)
    assert [tensor.device.type for tensor in nested.tensors(moved)] == ["meta"] * 12
    assert [tensor.shape for tensor in nested.tensors(moved)] == [tensor.shape for tensor in nested.tensors(original)]
    first, mappings, ordered, output, objects, (masks, derived), plain = moved
    assert type(first) is Nested and first.note == "a" and type(first.pairs[0]) is Pair
    assert type(first.pairs[1]) is Frozen and first.pairs[1].count == 7
    assert type(mappings["user"]) is UserDict and mappings["options"].note == "kept"
    assert type(ordered) is OrderedDict and type(output) is BaseModelOutput
    assert [type(value) for value in objects] == [InPlace, Returning]
    assert type(masks) is Masks and masks.size == 5 and derived.squares[0].shape == (3,)
    assert plain[5:] == original[6][5:] and plain[4] is original[6][4]
    remaining = (
        original[0].pairs[1].x,
        original[1]["user"]["x"],
        original[1]["options"]["x"],
        original[5][0][0],
        original[5][1].squares[0],
    )
    assert {tensor.device.type for tensor in remaining} == {"cpu"}


@pytest.mark.parametrize(
    ("value", "position"),
    [
        (SimpleNamespace(x=torch.zeros(1)), "batch is a SimpleNamespace"),
        ({"a": [0, SimpleNamespace(inner=SimpleNamespace(x=torch.zeros(1)))]}, r"batch\['a'\]\[1\] is a"),
        (Nested([{torch.zeros(1)}]), r"batch\.pairs\[0\] is a set"),
        ((0, (torch.zeros(1) for _ in "a")), r"batch\[1\] is a generator, which can be read only once"),
        ({"a": iter([torch.zeros(1)])}, r"batch\['a'\] is a list_iterator"),
        (cyclic(), r"batch\[0\]\['images'\] contains itself"),
    ],
)
def test_what_cannot_be_moved_is_named(value, position):
    with pytest.raises(UsageError, match=position):
        to_device(value, META)
    assert to_device([SimpleNamespace(x=1), {1, 2}], META)[0].x == 1  # without tensors they may stay


def test_structure_without_the_values_of_tensors():
    def flat(x, note="a"):
        return nested.flatten((Nested([x], note), {"y": x}))

    tensors, structure = flat(torch.ones(2))
    assert [float(tensor.sum()) for tensor in tensors] == [2, 2]
    assert flat(torch.zeros(2))[1] == structure != flat(torch.zeros(2), "b")[1]
    hash(structure)
    with pytest.raises(UsageError, match="the batch has a Returning"):
        nested.flatten([Returning(torch.zeros(1))])
