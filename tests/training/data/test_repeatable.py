"""Samples that are fetched twice: what is noticed of random numbers that are not seeded."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shoestring.training.data import repeatable
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.data.repeatable import compare_fetches, find_difference

CPU = torch.device("cpu")


class Data:
    """Dictionaries of which some values are random, from a generator for each sample in `unseeded` ones."""

    def __init__(self, unseeded=()):
        self.unseeded, self.held = unseeded, np.random.default_rng()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        generator = np.random.default_rng() if index in self.unseeded else self.held
        return {"image": torch.full((2,), float("nan")), "noise": generator.random(), "name": f"{index}"}


def compare(data, workers=0, recipe=None):
    order = DataOrder(samples=len(data), effective_batch=8, seed=0)
    with Loader(recipe or SimpleNamespace(), data, order, seed=0, device=CPU, workers=workers) as loader:
        return compare_fetches(loader, loader.parts(0, 8)[0])


def test_only_numbers_that_are_not_seeded_differ():
    members = DataOrder(samples=8, effective_batch=8, seed=0).indices(0)
    for workers in (0, 1):
        assert compare(Data(), workers).samples == 4
        comparison = compare(Data(unseeded=members[2:4]), workers)
        assert comparison.difference.startswith(f"sample {members[2]} differs (in batch['noise'])")
        assert "global generators" in comparison.text and comparison.difference in comparison.text


def test_collate_is_compared_too():
    recipe = SimpleNamespace(collate=lambda samples: [len(samples), np.random.default_rng().random()])
    assert compare([1, 2, 3], recipe=recipe).difference.startswith("the first samples differ (in batch[1])")


def test_slow_samples_and_errors_are_not_compared(monkeypatch):
    monkeypatch.setattr(repeatable, "_SECONDS", 0.0)
    comparison = compare(Data(unseeded=range(8)))
    assert not comparison.samples and comparison.skipped.startswith("a sample takes")
    assert compare([1, 2, 3], recipe=SimpleNamespace(collate=lambda _: 1 / 0)).skipped.startswith("ZeroDivisionError")


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), None),
        (torch.tensor([1, 2]).bfloat16(), torch.tensor([1, 3]).bfloat16(), ("batch", 1)),
        (torch.tensor(1.0), torch.tensor(2.0), ("batch", None)),
        (np.zeros((2, 3)), np.zeros((3, 2)), ("batch", None)),
        (np.array(["a", "b"]), np.array(["a", "c"]), ("batch", 1)),
        ({"a": [1, float("nan")]}, {"a": [1, float("nan")]}, None),
        ({"a": [1, "x"]}, {"a": [1, "y"]}, ("batch['a'][1]", None)),
        ([1, 2], [1], ("batch", None)),
        (Pair(1, 2), Pair(1, 3), ("batch.second", None)),
        (1, 1.0, ("batch", None)),
        (None, None, None),
    ],
)
def test_differences_have_a_path_and_a_row(a, b, expected):
    assert find_difference(a, b, "batch") == expected
