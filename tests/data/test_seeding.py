import random

import numpy as np
import pytest
import torch

from shoestring.data import seeding
from shoestring.data.seeding import Generators, derive, generators_kept, seed_all, seed_host


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


@pytest.mark.parametrize(
    "touch",
    [
        random.random,
        lambda: random.gauss(0.0, 1.0),
        lambda: torch.rand(1),
        lambda: np.random.rand(),
        lambda: np.random.seed(5),
        lambda: torch.manual_seed(5),
    ],
)
def test_whoever_draws_is_seen_and_undone(touch):
    seed_all(1)
    generators, again = Generators(), Generators()
    assert generators.untouched() and again.untouched()
    touch()
    assert not generators.untouched()
    generators.restore()
    assert again.untouched()


@pytest.mark.parametrize("draw_one", [random.random, lambda: random.gauss(0.0, 1.0)])
def test_where_memory_tells_nothing_python_is_asked(draw_one, monkeypatch):
    monkeypatch.setattr(seeding, "_python_readable", lambda: False)
    seed_all(1)
    generators = Generators()
    expected = draw_one()
    assert not generators.untouched()
    generators.restore()
    assert generators.untouched()
    assert draw_one() == expected


def test_the_second_of_a_pair_of_normal_numbers_is_seen_to_be_used_up():
    seed_all(1)
    np.random.randn()
    generators = Generators()
    assert generators.untouched()
    second = np.random.randn()  # changes nothing but the note that it is there
    assert not generators.untouched()
    generators.restore()
    assert np.random.randn() == second
