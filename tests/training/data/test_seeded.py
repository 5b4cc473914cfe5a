"""Data that a recipe makes at random are the same in every process."""

import random

import torch
from torch.utils.data import TensorDataset, random_split

from shoestring.recipe.finding import find
from shoestring.training.data.seeded import seeded_data
from tests.mine import Mine


class Split(Mine):
    def data(self):
        train, validation = random_split(TensorDataset(torch.randn(10, 3)), [7, 3])
        return {"train": train, "validation": validation}


def test_random_split_is_a_function_of_the_seed():
    loaded = find(Split())
    parts = [seeded_data(loaded.replace(seed=seed)) for seed in (0, 0, 1)]
    assert parts[0]["train"].indices == parts[1]["train"].indices != parts[2]["train"].indices
    assert torch.equal(parts[0]["train"][0][0], parts[1]["train"][0][0])


def test_generators_are_restored():
    before = random.getstate(), torch.get_rng_state()
    seeded_data(find(Split()))
    assert before[0] == random.getstate() and torch.equal(before[1], torch.get_rng_state())
