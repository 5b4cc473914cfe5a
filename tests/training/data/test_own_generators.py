"""Generators that objects hold are seeded from the place of a sample."""

import random
import sys
import types

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from shoestring.training.data.batches import SampleRandomness, fetch
from shoestring.training.data.own_generators import AllStates, OwnGenerators

KINDS = {
    "generator": np.random.default_rng,
    "philox": lambda: np.random.Generator(np.random.Philox()),
    "state": np.random.RandomState,
    "python": random.Random,
    "torch": torch.Generator,
}


def draw(generator):
    if isinstance(generator, torch.Generator):
        return torch.rand(2, generator=generator).tolist()
    return [generator.random(), generator.random()]


class Data:
    """Samples that are what its generators draw."""

    def __init__(self, *generators):
        self.transform = types.SimpleNamespace(steps=list(generators))

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([draw(generator) for generator in self.transform.steps])


class Lazy(Data):
    """A generator that is created for the first sample of each process."""

    def __getitem__(self, index):
        if not self.transform.steps:
            self.transform.steps.append(np.random.default_rng())
        return super().__getitem__(index)


class Several(Data):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def fetched(dataset, indices, randomness=None, epoch=0, collate=default_collate):
    return fetch(dataset, collate, indices, seed=1, epoch=epoch, randomness=randomness)


@pytest.mark.parametrize("kind", KINDS)
def test_generators_are_seeded_by_sample_and_restored(kind):
    dataset, shared = Data(KINDS[kind](), KINDS[kind]()), SampleRandomness()
    states = AllStates(OwnGenerators(dataset=dataset))
    together = fetched(dataset, [3, 5, 2], shared)
    assert states.unchanged()
    draw(dataset.transform.steps[0])
    assert not states.unchanged()
    again = fetched(dataset, [2], shared)
    assert torch.equal(again[0], together[2])
    other = Data(KINDS[kind](), KINDS[kind]())
    assert torch.equal(fetched(other, [5, 3])[0], together[1])
    assert not torch.equal(together[0], together[1]) and not torch.equal(together[0, 0], together[0, 1])
    assert not torch.equal(fetched(other, [3], epoch=1)[0], together[0])


def test_samples_of_generators_that_appear_later_are_fetched_again():
    shared, dataset = SampleRandomness(), Lazy()
    first = fetched(dataset, [0, 1], shared)
    assert torch.equal(first, fetched(Lazy(), [1, 0]).flip(0))
    assert torch.equal(fetched(dataset, [1], shared)[0], first[1])


def test_samples_fetched_together_are_seeded_one_by_one():
    assert torch.equal(
        fetched(Several(np.random.default_rng()), [4, 5]), fetched(Data(np.random.default_rng()), [4, 5])
    )


def test_collate_has_its_generators_too():
    class Mixing:
        def __init__(self):
            self.generator = np.random.default_rng()

        def __call__(self, samples):
            return [*samples, self.generator.random()]

    assert fetched([1, 2, 3], [0, 1], collate=Mixing()) == fetched([1, 2, 3], [0, 1], collate=Mixing())


def test_global_generators_and_those_without_a_seed_are_none(monkeypatch):
    imgaug = types.ModuleType("imgaug.random")
    imgaug.GLOBAL_RNG = types.SimpleNamespace(generator=np.random.default_rng())
    held = [random._inst, np.random.mtrand._rand, torch.default_generator, random.SystemRandom()]
    assert not len(OwnGenerators(dataset=held))
    monkeypatch.setitem(sys.modules, "imgaug.random", imgaug)
    assert OwnGenerators(dataset=held).paths == ["imgaug.random.generator (Generator)"]
