"""Reading the states of Python's and NumPy's global generators (Mersenne Twisters) from memory, in a microsecond.

This uses private parts of both: `random._inst` and CPython's `_randommodule.c: RandomObject`, and NumPy's `_mt19937.h:
mt19937_state`. Written for CPython 3.11 to 3.13 and tested with each; for NumPy 1.26 to 2.4 and tested with 2.4. Before
the first use, a separate generator is read from memory and compared with its public state. If these differ, on any
version, `read_python_state` and `read_numpy_state` return None, and `generators.py` uses the public functions.
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
"""Words of 32 bits in the state of a Mersenne Twister: 624 words and the position among them."""


class PythonState(NamedTuple):
    """A state of Python's generator.

    `random.getstate()` builds a tuple of 625 integers, which takes sixteen times as long, and much longer when a model
    occupies the caches.
    """

    words: bytes
    next_gauss: float | None
    """The second number of a pair of normal numbers."""

    def public(self) -> tuple[Any, ...]:
        """Return the state as `random.setstate` accepts it."""
        position, *words = struct.unpack(f"={_WORDS}I", self.words)
        return (random.Random.VERSION, (*words, position), self.next_gauss)


class NumpyState(NamedTuple):
    """A state of NumPy's generator without a second normal number, which would be stored beside the words."""

    generator: np.random.MT19937
    words: bytes

    def public(self) -> dict[str, Any]:
        """Return the state as `np.random.set_state` accepts it."""
        *words, position = struct.unpack(f"={_WORDS}I", self.words)
        twister = {"key": np.array(words, dtype=np.uint32), "pos": position}
        return {"bit_generator": "MT19937", "state": twister, "has_gauss": 0, "gauss": 0.0}

    def is_current(self) -> bool:
        """Return whether the global generator is still this one, in this state."""
        return mtrand.get_bit_generator() is self.generator and _read_numpy_words(self.generator) == self.words


def read_python_state() -> PythonState | None:
    """Return the state of the generator behind the functions of `random`; None if it cannot be read from memory."""
    if not python_is_readable():
        return None
    generator: Any = random._inst
    return PythonState(_read_python_words(generator), generator.gauss_next)


def read_numpy_state() -> NumpyState | None:
    """Return the state of the generator behind the functions of `np.random`; None if it cannot be read from memory."""
    if not numpy_is_readable():
        return None
    generator = mtrand.get_bit_generator()
    return NumpyState(generator, _read_numpy_words(generator)) if type(generator) is np.random.MT19937 else None


@functools.cache
def python_is_readable() -> bool:
    """Return whether the memory layout of Python's generator is that of its sources."""
    # In implementations other than CPython an object's id may not be its address.
    if sys.implementation.name != "cpython" or type(getattr(random, "_inst", None)) is not random.Random:
        return False
    if random.Random.__basicsize__ < object.__basicsize__ + _WORDS * 4:
        return False
    generator: Any = random.Random(0)
    for _ in range(2):
        generator.random()
        if PythonState(_read_python_words(generator), generator.gauss_next).public() != generator.getstate():
            return False
    return True


@functools.cache
def numpy_is_readable() -> bool:
    """Return whether the memory layout of NumPy's generator is that of its sources."""
    if not hasattr(mtrand, "get_bit_generator"):
        return False
    generator = np.random.MT19937(0)
    for _ in range(2):
        generator.random_raw()
        words, position = generator.state["state"]["key"], generator.state["state"]["pos"]
        if _read_numpy_words(generator) != words.astype(np.uint32).tobytes() + int(position).to_bytes(4, sys.byteorder):
            return False
    return True


def _read_python_words(generator: random.Random) -> bytes:
    return ctypes.string_at(id(generator) + object.__basicsize__, _WORDS * 4)


def _read_numpy_words(generator: np.random.MT19937) -> bytes:
    return ctypes.string_at(generator.ctypes.state_address, _WORDS * 4)
