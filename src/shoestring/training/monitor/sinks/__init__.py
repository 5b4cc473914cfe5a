"""Sinks: what the numbers of a run are written to while it trains, beside its own record.

A sink is a class in a module of this package with the interface of `Sink`; `names.py` has its name for `--log NAME`,
which is also that of its folder. It runs in a process of its own, which reads the run's record, so nothing that it does
can stop or change the run.
"""

from __future__ import annotations

from typing import Protocol

from shoestring.training.monitor.sinks.points import Point


class Sink(Protocol):
    """Writes points to the folder that it is created with, in place of what an earlier sink has written there."""

    def add(self, point: Point) -> None:
        """Write a point. Updates rise, apart from evaluations of several parts after the same update."""

    def flush(self) -> None:
        """Make what was added visible to readers. It is called about once a second."""

    def close(self) -> None:
        """Write what is left."""
