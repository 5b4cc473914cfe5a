"""What memory tells is what the generators say; where it would not be, it is not read."""

import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.random import mtrand

from shoestring.data import twisters


@pytest.fixture(autouse=True)
def unknown():
    """Nothing is known yet, nor afterwards."""
    yield
    twisters.python_readable.cache_clear()
    twisters.numpy_readable.cache_clear()


def test_memory_tells_what_python_says():
    for seed in range(3):
        random.seed(seed)
        for _ in range(400):
            random.gauss(0.0, 1.0)
            now = twisters.python_now()
            assert now is not None and now.public() == random.getstate()


def test_memory_tells_what_numpy_says():
    for seed in range(3):
        np.random.seed(seed)
        for _ in range(400):
            np.random.rand()
            now, said = twisters.numpy_now(), np.random.get_state(legacy=False)
            assert now is not None and now.is_now()
            told = now.public()
            assert (told["state"]["key"] == said["state"]["key"]).all() and told["state"]["pos"] == said["state"]["pos"]
            assert {**told, "state": 0} == {**said, "state": 0}


def test_another_layout_is_not_read(monkeypatch):
    twisters.python_readable.cache_clear()
    twisters.numpy_readable.cache_clear()
    monkeypatch.setattr(twisters, "_python_words", lambda generator: bytes(2500))
    monkeypatch.setattr(twisters, "_numpy_words", lambda generator: bytes(2500))
    assert twisters.python_now() is None and twisters.numpy_now() is None


@pytest.mark.parametrize("missing", ["the generator", "CPython"])
def test_python_without_these_parts_is_not_read(missing, monkeypatch):
    twisters.python_readable.cache_clear()
    monkeypatch.setattr(twisters, "_python_words", lambda generator: pytest.fail("read"))
    if missing == "CPython":
        monkeypatch.setattr(sys, "implementation", SimpleNamespace(name="another"))
    else:
        monkeypatch.delattr(random, "_inst")
    assert twisters.python_now() is None


def test_numpy_without_these_parts_is_not_read(monkeypatch):
    twisters.numpy_readable.cache_clear()
    monkeypatch.setattr(twisters, "_numpy_words", lambda generator: pytest.fail("read"))
    monkeypatch.delattr(mtrand, "get_bit_generator")
    assert twisters.numpy_now() is None


def test_nor_is_another_kind_of_generator(monkeypatch):
    monkeypatch.setattr(mtrand, "get_bit_generator", lambda: np.random.PCG64(0))
    assert twisters.numpy_now() is None
