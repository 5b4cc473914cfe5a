import random

import numpy as np
import torch

from shoestring.training.data.seeding import derive, seed_all


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_seed_determines_every_generator():
    seed_all(derive(3, "update", 7))
    first = draw()
    seed_all(derive(3, "update", 7))
    assert draw() == first
    seed_all(derive(3, "update", 8))
    assert all(number != previous for number, previous in zip(draw(), first, strict=True))


def test_every_position_has_its_own_seed():
    seeds = {
        derive(seed, purpose, number) for seed in (0, 1) for purpose in ("update", "order") for number in range(50)
    }
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
