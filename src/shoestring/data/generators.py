"""The state of the CPU's global generators: kept, compared, brought back.

Python's and NumPy's are Mersenne Twisters, whose words `twisters.py` reads where they lie. Where it cannot, what the
generators say of themselves is used instead: the same, for about twenty times as long.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shoestring.data import twisters


class Generators:
    """The CPU's generators as they were when this was made, in 3 microseconds; 27 more where NumPy's had moved."""

    def __init__(self) -> None:
        self._python, self._torch, self._numpy = _python_state(), torch.get_rng_state(), _numpy_state()

    def untouched(self) -> bool:
        """Whether nobody has drawn from them since, or seeded them with anything else."""
        return (
            self._numpy.is_now()
            and _python_state() == self._python
            and torch.get_rng_state().numpy().tobytes() == self._torch.numpy().tobytes()
        )

    def restore(self) -> None:
        """Have them draw again what they would have drawn."""
        python = self._python
        random.setstate(python.public() if isinstance(python, twisters.Python) else python)
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy.public())


@contextmanager
def generators_kept() -> Iterator[None]:
    """Whatever its body seeds or draws, the CPU's generators are afterwards as they were before."""
    before = Generators()
    try:
        yield
    finally:
        before.restore()


def numpy_was_seeded() -> None:
    """Spare the next look at NumPy's generator: it was seeded just now, which leaves no second normal number."""
    global _seen
    _seen = twisters.numpy_now()


def _python_state() -> twisters.Python | tuple[Any, ...]:
    return twisters.python_now() or random.getstate()


class _Asked:
    """What NumPy says of its generator."""

    def __init__(self, said: Any) -> None:
        self._said = said

    def public(self) -> Any:
        return self._said

    def is_now(self) -> bool:
        return str(_plain(np.random.get_state(legacy=False))) == str(_plain(self._said))


_seen: twisters.Numpy | _Asked | None = None


def _numpy_state() -> twisters.Numpy | _Asked:
    """What NumPy's generator is now. To ask it takes 27 microseconds, so that is done only where it has moved."""
    global _seen
    if _seen is None or not _seen.is_now():
        said = np.random.get_state(legacy=False)
        # The second of a pair of normal numbers lies beside the words, which stay when it is used up.
        _seen = (None if said["has_gauss"] else twisters.numpy_now()) or _Asked(said)
    return _seen


def _plain(state: Any) -> Any:
    """A generator's state without arrays."""
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
