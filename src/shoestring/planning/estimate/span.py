"""A duration with a range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Expected seconds, and the bounds between which they are expected to be."""

    seconds: float
    low: float
    high: float

    @classmethod
    def exactly(cls, seconds: float) -> Span:
        """Return a duration without a range."""
        return cls(seconds, seconds, seconds)

    def __add__(self, other: Span) -> Span:
        return Span(self.seconds + other.seconds, self.low + other.low, self.high + other.high)

    def __mul__(self, times: float) -> Span:
        return Span(self.seconds * times, self.low * times, self.high * times)

    def scaled(self, share: Span) -> Span:
        """Return a share of the duration that has a range of its own."""
        return Span(self.seconds * share.seconds, self.low * share.low, self.high * share.high)

    def json(self) -> dict[str, float]:
        """Return the duration as JSON.

        Keys:
            seconds (number): the expected seconds
            low_seconds (number): their lower bound
            high_seconds (number): their upper bound
        """
        return {"seconds": self.seconds, "low_seconds": self.low, "high_seconds": self.high}


NOTHING = Span.exactly(0.0)


def total(spans: Iterable[Span]) -> Span:
    """Return the sum. The ends of its range are the sums of the ends: the durations may all be long together."""
    return sum(spans, NOTHING)
