"""Python's and NumPy's global generators as they lie in memory, read in a microsecond.

Private parts of both: `random._inst` and CPython's `_randommodule.c: RandomObject`, and NumPy's `_mt19937.h:
mt19937_state`. Written for CPython 3.11 to 3.13, and run with each; for NumPy 1.26 to 2.4, and run with 2.4. Before
the first use a generator of its own is read and held against what it says of itself. Where these differ, on whatever
version, `python_now` and `numpy_now` are None, and `generators.py` asks the generators.
"""

import ctypes
import functools
import random
import struct
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.random import mtrand

_WORDS = 625
"""All that a Mersenne Twister consists of: 624 words of 32 bits and the place among them."""


class Python(NamedTuple):
    """A state of Python's generator. `random.getstate()`, a tuple of 625 integers, takes sixteen times as long, and
    much longer where the caches hold a model instead."""

    words: bytes
    second: float | None
    """Of a pair of normal numbers."""

    def public(self) -> tuple[Any, ...]:
        """As `random.setstate` takes it."""
        place, *words = struct.unpack(f"={_WORDS}I", self.words)
        return (random.Random.VERSION, (*words, place), self.second)


class Numpy(NamedTuple):
    """A state of NumPy's generator that has no second normal number, which would lie beside the words."""

    generator: np.random.MT19937
    words: bytes

    def public(self) -> dict[str, Any]:
        """As `np.random.set_state` takes it."""
        *words, place = struct.unpack(f"={_WORDS}I", self.words)
        twister = {"key": np.array(words, dtype=np.uint32), "pos": place}
        return {"bit_generator": "MT19937", "state": twister, "has_gauss": 0, "gauss": 0.0}

    def is_now(self) -> bool:
        """Whether the global generator is still this one, in this state."""
        return mtrand.get_bit_generator() is self.generator and _numpy_words(self.generator) == self.words


def python_now() -> Python | None:
    """The state of the generator behind all of random's functions; None where memory does not tell."""
    if not python_readable():
        return None
    generator: Any = random._inst
    return Python(_python_words(generator), generator.gauss_next)


def numpy_now() -> Numpy | None:
    """The state of the generator behind all of np.random's functions; None where memory does not tell."""
    if not numpy_readable():
        return None
    generator = mtrand.get_bit_generator()
    return Numpy(generator, _numpy_words(generator)) if type(generator) is np.random.MT19937 else None


@functools.cache
def python_readable() -> bool:
    """Whether Python's generator lies in memory as its sources have it."""
    # Elsewhere than in CPython an object's id may be no address.
    if sys.implementation.name != "cpython" or type(getattr(random, "_inst", None)) is not random.Random:
        return False
    if random.Random.__basicsize__ < object.__basicsize__ + _WORDS * 4:
        return False
    generator: Any = random.Random(0)
    for _ in range(2):
        generator.random()
        if Python(_python_words(generator), generator.gauss_next).public() != generator.getstate():
            return False
    return True


@functools.cache
def numpy_readable() -> bool:
    """Whether NumPy's generator lies in memory as its sources have it."""
    if not hasattr(mtrand, "get_bit_generator"):
        return False
    generator = np.random.MT19937(0)
    for _ in range(2):
        generator.random_raw()
        words, place = generator.state["state"]["key"], generator.state["state"]["pos"]
        if _numpy_words(generator) != words.astype(np.uint32).tobytes() + int(place).to_bytes(4, sys.byteorder):
            return False
    return True


def _python_words(generator: random.Random) -> bytes:
    return ctypes.string_at(id(generator) + object.__basicsize__, _WORDS * 4)


def _numpy_words(generator: np.random.MT19937) -> bytes:
    return ctypes.string_at(generator.ctypes.state_address, _WORDS * 4)
