"""The same whether the generators' memory is read or they are asked."""

import random

import numpy as np
import pytest
import torch

from shoestring.data import generators, twisters
from shoestring.data.generators import Generators, generators_kept
from shoestring.data.seeding import seed_all, seed_host


@pytest.fixture(params=["read", "asked"], autouse=True)
def way(request, monkeypatch):
    monkeypatch.setattr(generators, "_seen", None)
    if request.param == "asked":
        monkeypatch.setattr(twisters, "python_readable", lambda: False)
        monkeypatch.setattr(twisters, "numpy_readable", lambda: False)
    return request.param


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


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
        lambda: np.random.randn(),
        lambda: np.random.seed(5),
        lambda: torch.manual_seed(5),
    ],
)
def test_whoever_draws_is_seen_and_undone(touch):
    seed_all(1)
    before, again = Generators(), Generators()
    assert before.untouched() and again.untouched()
    touch()
    assert not before.untouched()
    before.restore()
    assert before.untouched() and again.untouched()


@pytest.mark.parametrize("draw_one", [random.random, lambda: random.gauss(0.0, 1.0), np.random.rand, np.random.randn])
def test_what_is_brought_back_draws_the_same_again(draw_one):
    seed_all(1)
    before = Generators()
    expected = [draw_one() for _ in range(3)]
    before.restore()
    assert [draw_one() for _ in range(3)] == expected


@pytest.mark.parametrize("draw_one", [lambda: random.gauss(0.0, 1.0), np.random.randn])
def test_the_second_of_a_pair_of_normal_numbers_is_seen_to_be_used_up(draw_one):
    seed_all(1)
    draw_one()
    before = Generators()
    assert before.untouched()
    second = draw_one()  # changes nothing but the note that it is there
    assert not before.untouched()
    before.restore()
    assert draw_one() == second


def test_memory_is_read_where_it_can_be(way, monkeypatch):
    seed_host(1)
    asked = []
    monkeypatch.setattr(random, "getstate", lambda: asked.append("python") or (3, (), None))
    monkeypatch.setattr(np.random, "get_state", lambda legacy: asked.append("numpy") or {"has_gauss": 0})
    Generators()
    assert asked == ([] if way == "read" else ["python", "numpy"])
