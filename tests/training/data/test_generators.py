"""Generator states, read from memory or through public functions: the same results."""

import random

import numpy as np
import pytest
import torch

from shoestring.training.data import generators, twisters
from shoestring.training.data.generators import GeneratorStates, preserved_generators
from shoestring.training.data.seeding import seed_all, seed_host


@pytest.fixture(params=["memory", "public"], autouse=True)
def source(request, monkeypatch):
    monkeypatch.setattr(generators, "_cached_numpy_state", None)
    if request.param == "public":
        monkeypatch.setattr(twisters, "python_is_readable", lambda: False)
        monkeypatch.setattr(twisters, "numpy_is_readable", lambda: False)
    return request.param


def draw():
    return random.random(), np.random.rand(), torch.rand(1).item()


def test_generators_are_preserved():
    seed_all(1)
    expected = draw()
    seed_all(1)
    with preserved_generators():
        seed_host(99)
        draw()
    assert draw() == expected


@pytest.mark.parametrize(
    "change",
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
def test_any_change_is_detected_and_restored(change):
    seed_all(1)
    states, same_states = GeneratorStates(), GeneratorStates()
    assert states.unchanged() and same_states.unchanged()
    change()
    assert not states.unchanged()
    states.restore()
    assert states.unchanged() and same_states.unchanged()


@pytest.mark.parametrize(
    "draw_number", [random.random, lambda: random.gauss(0.0, 1.0), np.random.rand, np.random.randn]
)
def test_restored_states_draw_the_same_numbers(draw_number):
    seed_all(1)
    states = GeneratorStates()
    expected = [draw_number() for _ in range(3)]
    states.restore()
    assert [draw_number() for _ in range(3)] == expected


@pytest.mark.parametrize("draw_number", [lambda: random.gauss(0.0, 1.0), np.random.randn])
def test_use_of_the_second_normal_number_is_detected(draw_number):
    seed_all(1)
    draw_number()
    states = GeneratorStates()
    assert states.unchanged()
    second = draw_number()  # changes only the flag for the second number
    assert not states.unchanged()
    states.restore()
    assert draw_number() == second


def test_public_functions_are_called_only_without_memory(source, monkeypatch):
    seed_host(1)
    public_calls = []
    monkeypatch.setattr(random, "getstate", lambda: public_calls.append("python") or (3, (), None))
    monkeypatch.setattr(np.random, "get_state", lambda legacy: public_calls.append("numpy") or {"has_gauss": 0})
    GeneratorStates()
    assert public_calls == ([] if source == "memory" else ["python", "numpy"])
