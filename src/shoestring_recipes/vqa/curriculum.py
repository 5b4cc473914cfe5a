"""The weights of the three texts in the loss, and the learning rate, as functions of the epoch.

The published schedule has 100 epochs: new stages begin at epochs 15 and 30, and cosine restarts at 15 and 45. For any
other number of epochs the schedule is scaled.
"""

import math
from dataclasses import dataclass

PUBLISHED_EPOCHS = 100
FIRST_PERIOD = 15
"""Epochs before the learning rate's first restart; each period is twice as long as the one before it (Loshchilov and
Hutter, 2017)."""
LOWEST_RATE = 1e-7


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Weights of the three texts, which sum to 1."""

    name: str
    format: float
    answer: float
    reasoning: float


ANSWER_FOCUS = Stage(name="ANSWER_FOCUS", format=0.60, answer=0.35, reasoning=0.05)
FORMAT_LEARNING = Stage(name="FORMAT_LEARNING", format=0.50, answer=0.30, reasoning=0.20)


def stage_at(epoch: int, epochs: float) -> Stage:
    """Return the stage of `epoch` (from 0) of `epochs`; the last one may be cut."""
    # Compared in integers, because 0.15 has no exact float.
    scaled = epoch * PUBLISHED_EPOCHS
    if scaled < 15 * epochs:
        return ANSWER_FOCUS
    if scaled < 30 * epochs:
        return FORMAT_LEARNING
    progress = (scaled / epochs - 30) / 70
    whole, reasoning = 0.25 + 0.05 * (1 - progress), 0.45 + 0.15 * progress
    return Stage(name="REASONING_QUALITY", format=whole, answer=1 - whole - reasoning, reasoning=reasoning)


def rate_factor(epoch: float, epochs: float, peak: float) -> float:
    """Return the factor of the learning rate `peak` at the fractional `epoch` of `epochs`."""
    elapsed, period = epoch / epochs * PUBLISHED_EPOCHS, FIRST_PERIOD
    while elapsed >= period:
        elapsed, period = elapsed - period, 2 * period
    lowest = min(1.0, LOWEST_RATE / peak)
    return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * elapsed / period))
