"""States read from memory equal the public ones; with an unknown memory layout nothing is read."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.random import mtrand

from shoestring.training.data import twisters


@pytest.fixture(autouse=True)
def uncached():
    """Clear the cached checks of the memory layout after each test."""
    yield
    twisters.python_is_readable.cache_clear()
    twisters.numpy_is_readable.cache_clear()


def test_python_state_in_memory_equals_the_public_one():
    for seed in range(3):
        random.seed(seed)
        for _ in range(400):
            random.gauss(0.0, 1.0)
            state = twisters.read_python_state()
            assert state is not None and state.public() == random.getstate()


def test_numpy_state_in_memory_equals_the_public_one():
    for seed in range(3):
        np.random.seed(seed)
        for _ in range(400):
            np.random.rand()
            state, expected = twisters.read_numpy_state(), np.random.get_state(legacy=False)
            assert state is not None and state.is_current()
            public = state.public()
            assert (public["state"]["key"] == expected["state"]["key"]).all()
            assert public["state"]["pos"] == expected["state"]["pos"]
            assert {**public, "state": 0} == {**expected, "state": 0}


def test_unknown_layout_is_not_read(monkeypatch):
    twisters.python_is_readable.cache_clear()
    twisters.numpy_is_readable.cache_clear()
    monkeypatch.setattr(twisters, "_read_python_words", lambda generator: bytes(2500))
    monkeypatch.setattr(twisters, "_read_numpy_words", lambda generator: bytes(2500))
    assert twisters.read_python_state() is None and twisters.read_numpy_state() is None


@pytest.mark.parametrize("missing", ["the generator", "CPython"])
def test_python_without_private_parts_is_not_read(missing, monkeypatch):
    twisters.python_is_readable.cache_clear()
    monkeypatch.setattr(twisters, "_read_python_words", lambda generator: pytest.fail("read"))
    if missing == "CPython":
        monkeypatch.setattr(sys, "implementation", SimpleNamespace(name="another"))
    else:
        monkeypatch.delattr(random, "_inst")
    assert twisters.read_python_state() is None


def test_numpy_without_private_parts_is_not_read(monkeypatch):
    twisters.numpy_is_readable.cache_clear()
    monkeypatch.setattr(twisters, "_read_numpy_words", lambda generator: pytest.fail("read"))
    monkeypatch.delattr(mtrand, "get_bit_generator")
    assert twisters.read_numpy_state() is None


def test_other_numpy_generators_are_not_read(monkeypatch):
    monkeypatch.setattr(mtrand, "get_bit_generator", lambda: np.random.PCG64(0))
    assert twisters.read_numpy_state() is None
