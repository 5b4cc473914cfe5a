"""Random number generators that objects of the recipe's author or of a library hold: those that are not global.

albumentations, for example, gives each of its transforms a generator of NumPy and one of Python, which
`np.random.seed` and `random.seed` do not reach. They are seeded like the global ones, from the place of the
sample, so that nothing depends on how many samples a process has fetched before.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from shoestring.training.data.generators import GeneratorStates, without_arrays
from shoestring.training.data.reachable import walk
from shoestring.training.data.seeding import derive, seed_all

_MASK = (1 << 63) - 1


@dataclass(frozen=True)
class Kind:
    """A type of generators, and its functions."""

    type_: type
    seed: Callable[[Any, int], object]
    state: Callable[[Any], Any]
    restore: Callable[[Any, Any], object]


def _seed_bits(generator: Any, value: int) -> None:
    bits = generator.bit_generator
    bits.state = type(bits)(value).state


def _restore_bits(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


KINDS = (
    Kind(np.random.Generator, _seed_bits, lambda generator: generator.bit_generator.state, _restore_bits),
    Kind(
        np.random.RandomState,
        lambda generator, value: generator.seed(value & 0xFFFFFFFF),
        lambda generator: generator.get_state(legacy=False),
        lambda generator, state: generator.set_state(state),
    ),
    Kind(random.Random, random.Random.seed, random.Random.getstate, random.Random.setstate),
    Kind(torch.Generator, torch.Generator.manual_seed, torch.Generator.get_state, torch.Generator.set_state),
)
"""The generators that can be seeded, wherever they are held."""
GLOBALS_OF_LIBRARIES = (("imgaug.random", "GLOBAL_RNG"),)
"""Module and variable of generators that libraries hold themselves. (kornia, torchvision and audiomentations draw from
the global generators of torch, NumPy and Python.)"""


@dataclass(frozen=True)
class _Generator:
    path: str
    offset: int
    """Is added to a seed: two transforms with the same seed would decide alike."""
    kind: Kind
    generator: Any


class OwnGenerators:
    """The generators that some objects hold. Without any, nothing here takes time."""

    def __init__(self, **roots: Any) -> None:
        """`roots` are the objects, by the names that begin the paths of what they hold."""
        for module, variable in GLOBALS_OF_LIBRARIES:
            if module in sys.modules:
                roots[module] = getattr(sys.modules[module], variable, None)
        self._generators = list(_search(roots))

    def __len__(self) -> int:
        return len(self._generators)

    @property
    def paths(self) -> list[str]:
        """Where each generator is held, and its type."""
        return [f"{item.path} ({type(item.generator).__qualname__})" for item in self._generators]

    def seed(self, value: int) -> None:
        """Seed each generator from `value` and its own place among the objects."""
        for item in self._generators:
            item.kind.seed(item.generator, (value + item.offset) & _MASK)

    def seed_all(self, value: int) -> None:
        """Seed these and the global generators."""
        seed_all(value)
        self.seed(value)

    def states(self) -> list[Any]:
        return [item.kind.state(item.generator) for item in self._generators]

    def unchanged(self, states: Sequence[Any]) -> bool:
        return all(_is_equal(own, state) for own, state in zip(self.states(), states, strict=True))

    def restore(self, states: Sequence[Any]) -> None:
        for item, state in zip(self._generators, states, strict=True):
            item.kind.restore(item.generator, state)


class LazyGenerators:
    """The generators of some objects, searched before these are used, and again afterwards: the first use creates some.

    With the same objects in another process, the same generators get the same seeds.
    """

    def __init__(self, own: OwnGenerators | None = None) -> None:
        """With `own` generators no others are searched."""
        self.own, self._is_complete = own, own is not None

    def search(self, **roots: Any) -> OwnGenerators:
        """Return the generators that the objects hold, which are searched only once."""
        if self.own is None:
            self.own = OwnGenerators(**roots)
        return self.own

    def has_new(self, **roots: Any) -> bool:
        """Return after the first use whether it has created generators, which were not seeded. Later uses do not."""
        if self._is_complete:
            return False
        self._is_complete, before = True, self.search(**roots).paths
        self.own = OwnGenerators(**roots)
        return self.own.paths != before


class AllStates:
    """The states of the global generators of the CPU and of those that objects hold, at construction."""

    def __init__(self, own: OwnGenerators) -> None:
        self._own, self._global, self._of_own = own, GeneratorStates(), own.states()

    def unchanged(self) -> bool:
        return self._global.unchanged() and self._own.unchanged(self._of_own)

    def restore(self) -> None:
        self._global.restore()
        self._own.restore(self._of_own)


def _search(roots: dict[str, Any]) -> Iterator[_Generator]:
    excluded = {id(random._inst), id(np.random.mtrand._rand), id(torch.default_generator)}
    for path, value in walk(roots):
        kind = next((kind for kind in KINDS if isinstance(value, kind.type_)), None)
        # The system's random numbers have no state, and no seed.
        if kind and id(value) not in excluded and not isinstance(value, random.SystemRandom):
            yield _Generator(path, derive(0, "generator", path), kind, value)


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(without_arrays(a) == without_arrays(b))
