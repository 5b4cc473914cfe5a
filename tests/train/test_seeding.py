import random

import numpy as np
import torch

from shoestring.train.seeding import derive, generators_kept, seed_all, seed_host


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


def test_what_happens_between_leaves_no_trace():
    seed_all(1)
    expected = draw()
    seed_all(1)
    with generators_kept():
        seed_host(99)
        draw()
    assert draw() == expected
