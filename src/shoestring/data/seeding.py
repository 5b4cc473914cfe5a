"""Randomness as a function of (seed, what it is for): nothing to save, nothing to restore.

Most trainers carry the generators' states in their checkpoints and must restore each at the right instant. Here every
update, and every sample that is fetched alone, seeds all generators anew from the run's seed and its own place. So a
resumed or retried update draws what it would have drawn, whatever ran before it.
"""

import ctypes
import functools
import hashlib
import random
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand


def derive(seed: int, *place: str | int) -> int:
    """A 63-bit seed for one place in a run: ``derive(0, "update", 41)``."""
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_all(value: int) -> None:
    """Seed Python's, NumPy's and torch's global generators (torch's on every device in use)."""
    seed_host(value)
    # torch.manual_seed would note a stack trace for devices that are not in use, which takes longer than all the rest.
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)


def seed_host(value: int) -> None:
    """Seed the global generators of the CPU, in about 7 microseconds."""
    global _seen
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    _seen = _NumpyState(seeded=True)
    torch.default_generator.manual_seed(value)


class Generators:
    """The CPU's generators as they were when this was made, in 3 microseconds; 27 more where NumPy's had moved."""

    def __init__(self) -> None:
        self._python, self._torch, self._numpy = _python_state(), torch.get_rng_state(), _numpy_state()

    def untouched(self) -> bool:
        """Whether nobody has drawn from them since, or seeded them with anything else."""
        return (
            self._numpy.still()
            and _python_state() == self._python
            and torch.get_rng_state().numpy().tobytes() == self._torch.numpy().tobytes()
        )

    def restore(self) -> None:
        """Have them draw again what they would have drawn."""
        _set_python_state(self._python)
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy.state)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whatever its body seeds or draws, the CPU's generators are afterwards as they were before."""
    before = Generators()
    try:
        yield
    finally:
        before.restore()


_WORDS = 625
"""All that a Mersenne Twister consists of: 624 words of 32 bits and the place among them."""


def _python_state() -> tuple[Any, ...]:
    """What Python's generator is now: (its words as they lie in memory, the second of a pair of normal numbers).

    `random.getstate()`, a tuple of 625 integers, takes sixteen times as long, and much longer where the caches hold a
    model instead; it is the answer where the words cannot be read.
    """
    generator: Any = random._inst  # behind all of random's functions
    return (_python_words(generator), generator.gauss_next) if _python_readable() else random.getstate()


def _set_python_state(state: tuple[Any, ...]) -> None:
    if len(state) == 2:
        place, *words = struct.unpack(f"={_WORDS}I", state[0])
        state = (random.Random.VERSION, (*words, place), state[1])
    random.setstate(state)


def _python_words(generator: random.Random) -> bytes:
    return ctypes.string_at(id(generator) + object.__basicsize__, _WORDS * 4)


@functools.cache
def _python_readable() -> bool:
    """Whether Python's generator lies in memory as its sources have it (`_randommodule.c: RandomObject`)."""
    if random.Random.__basicsize__ < object.__basicsize__ + _WORDS * 4:
        return False
    generator = random.Random(0)
    for _ in range(2):
        generator.random()
        _, (*words, place), _ = generator.getstate()
        if _python_words(generator) != struct.pack(f"={_WORDS}I", place, *words):
            return False
    return True


class _NumpyState:
    """The state of NumPy's global generator, which takes 27 microseconds to ask for, so that is not done without need:
    neither where it has not moved, nor where it was `seeded` just now.
    """

    def __init__(self, *, seeded: bool = False) -> None:
        self._generator = mtrand.get_bit_generator()
        self._bytes = _bytes(self._generator)
        self._asked: dict[str, Any] | None = None
        if self._bytes is None or not seeded:
            self._asked = dict(np.random.get_state(legacy=False))
            # The second of a pair of normal numbers lies beside the generator: using it up leaves the words. Seeding
            # drops it.
            self._bytes = None if self._asked["has_gauss"] else self._bytes

    @property
    def state(self) -> dict[str, Any]:
        """As `np.random.set_state` takes it."""
        if self._asked is None:
            assert self._bytes is not None
            *words, place = struct.unpack(f"={_WORDS}I", self._bytes)
            twister = {"key": np.array(words, dtype=np.uint32), "pos": place}
            return {"bit_generator": "MT19937", "state": twister, "has_gauss": 0, "gauss": 0.0}
        return self._asked

    def still(self) -> bool:
        """Whether this is the state now."""
        if self._bytes is not None:
            return mtrand.get_bit_generator() is self._generator and _bytes(self._generator) == self._bytes
        return str(_plain(np.random.get_state(legacy=False))) == str(_plain(self.state))


_seen: _NumpyState | None = None


def _numpy_state() -> _NumpyState:
    """What NumPy's generator is now; asked for again only where it has moved."""
    global _seen
    if _seen is None or not _seen.still():
        _seen = _NumpyState()
    return _seen


def _bytes(generator: Any) -> bytes | None:
    """Its words as they lie in memory; None where they cannot be read."""
    if not _numpy_readable() or type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, _WORDS * 4)


@functools.cache
def _numpy_readable() -> bool:
    """Whether NumPy's generator lies in memory as its sources have it (`_mt19937.h: mt19937_state`)."""
    generator = np.random.MT19937(0)
    for _ in range(2):
        generator.random_raw()
        words, place = generator.state["state"]["key"], generator.state["state"]["pos"]
        expected = words.astype(np.uint32).tobytes() + int(place).to_bytes(4, sys.byteorder)
        if ctypes.string_at(generator.ctypes.state_address, _WORDS * 4) != expected:
            return False
    return True


def _plain(state: Any) -> Any:
    """A generator's state without arrays."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
