"""What each of the three texts weighs in the loss, and how fast is learnt, as functions of the epoch.

Published for 100 epochs: stages from epochs 15 and 30 on, and cosine restarts after 15 and 45. A run of any other
length goes through the same shares of its own.
"""

import math
from dataclasses import dataclass

PUBLISHED_EPOCHS = 100
FIRST_PERIOD = 15
"""Epochs up to the learning rate's first restart; every later period is twice as long (Loshchilov and Hutter, 2017)."""
LOWEST_RATE = 1e-7


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Weights of the texts, which sum to 1."""

    name: str
    format: float
    answer: float
    reasoning: float


ANSWER_FOCUS = Stage(name="ANSWER_FOCUS", format=0.60, answer=0.35, reasoning=0.05)
FORMAT_LEARNING = Stage(name="FORMAT_LEARNING", format=0.50, answer=0.30, reasoning=0.20)


def stage(epoch: int, epochs: int) -> Stage:
    """The stage of `epoch` (from 0) of so many."""
    # In whole numbers: 0.15 is not among the floats.
    at = epoch * PUBLISHED_EPOCHS
    if at < 15 * epochs:
        return ANSWER_FOCUS
    if at < 30 * epochs:
        return FORMAT_LEARNING
    progress = (at / epochs - 30) / 70
    whole, reasoning = 0.25 + 0.05 * (1 - progress), 0.45 + 0.15 * progress
    return Stage(name="REASONING_QUALITY", format=whole, answer=1 - whole - reasoning, reasoning=reasoning)


def rate(epoch: float, epochs: int, peak: float) -> float:
    """The factor on the learning rate `peak` at `epoch` (with its fraction) of so many."""
    since, period = epoch / epochs * PUBLISHED_EPOCHS, FIRST_PERIOD
    while since >= period:
        since, period = since - period, 2 * period
    lowest = min(1.0, LOWEST_RATE / peak)
    return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * since / period))
