import random

import numpy as np
import torch

from shoestring.data.seeding import derive, seed_all


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_every_generator_follows_the_seed():
    seed_all(derive(3, "update", 7))
    first = draw()
    seed_all(derive(3, "update", 7))
    assert draw() == first
    seed_all(derive(3, "update", 8))
    assert all(now != before for now, before in zip(draw(), first, strict=True))


def test_places_have_seeds_of_their_own():
    seeds = {derive(seed, place, number) for seed in (0, 1) for place in ("update", "order") for number in range(50)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
