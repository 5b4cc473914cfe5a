"""Random numbers as a function of the seed and a position in the run: there is no generator state to save or restore.

Most trainers store the generators' states in their checkpoints and must restore each at the right moment. Here every
update, and every sample that is fetched individually, seeds all generators from the run's seed and its own position. So
a resumed or retried update draws the same numbers, whatever ran before it.
"""

import hashlib
import random

import numpy as np
import torch

from shoestring.training.data import generators


def derive(seed: int, *place: str | int) -> int:
    """Return a seed from 0 to 2**63 - 1 for one position in a run: ``derive(0, "update", 41)``.

    The same arguments give the same seed on every machine.
    """
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_all(value: int) -> None:
    """Seed Python's, NumPy's and torch's global generators (torch's on every device in use)."""
    seed_host(value)
    # torch.manual_seed would record a stack trace for devices that are not in use, which takes longer than seeding.
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)


def seed_host(value: int) -> None:
    """Seed the global generators of the CPU, in about 7 microseconds."""
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    generators.cache_seeded_numpy_state()
    torch.default_generator.manual_seed(value)
