"""The states of the CPU's global random number generators: saving, comparing and restoring them.

Python's and NumPy's generators are Mersenne Twisters, whose states `twisters.py` reads from memory. If it cannot, their
public functions are used, which return the same but take about twenty times as long.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shoestring.training.data import twisters


class GeneratorStates:
    """The states of the CPU's generators at construction, which takes 3 microseconds, or 30 if NumPy's has changed."""

    def __init__(self) -> None:
        self._python, self._torch, self._numpy = _python_state(), torch.get_rng_state(), _numpy_state()

    def unchanged(self) -> bool:
        """Return whether the generators are still in these states: nothing was drawn, and no other seed was set."""
        return (
            self._numpy.is_current()
            and _python_state() == self._python
            and torch.get_rng_state().numpy().tobytes() == self._torch.numpy().tobytes()
        )

    def restore(self) -> None:
        """Restore these states."""
        python = self._python
        random.setstate(python.public() if isinstance(python, twisters.PythonState) else python)
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy.public())


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the states of the CPU's generators after the body, which may seed them or draw from them."""
    states = GeneratorStates()
    try:
        yield
    finally:
        states.restore()


def cache_seeded_numpy_state() -> None:
    """Cache the state of NumPy's generator right after seeding, which leaves no second normal number.

    This saves the next `GeneratorStates` the slow public function.
    """
    global _cached_numpy_state
    _cached_numpy_state = twisters.read_numpy_state()


def _python_state() -> twisters.PythonState | tuple[Any, ...]:
    return twisters.read_python_state() or random.getstate()


class _PublicNumpyState:
    """A state of NumPy's generator as its public function returns it."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def public(self) -> Any:
        return self._state

    def is_current(self) -> bool:
        return str(without_arrays(np.random.get_state(legacy=False))) == str(without_arrays(self._state))


_cached_numpy_state: twisters.NumpyState | _PublicNumpyState | None = None


def _numpy_state() -> twisters.NumpyState | _PublicNumpyState:
    """Return the current state of NumPy's generator.

    Its public function takes 27 microseconds, so it is called only if the generator has changed.
    """
    global _cached_numpy_state
    if _cached_numpy_state is None or not _cached_numpy_state.is_current():
        public_state = np.random.get_state(legacy=False)
        # The second of a pair of normal numbers is stored beside the words, which do not change when it is used.
        _cached_numpy_state = (None if public_state["has_gauss"] else twisters.read_numpy_state()) or _PublicNumpyState(
            public_state
        )
    return _cached_numpy_state


def without_arrays(state: Any) -> Any:
    """Return a generator's state with its arrays as lists."""
    if isinstance(state, dict):
        return {key: without_arrays(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
