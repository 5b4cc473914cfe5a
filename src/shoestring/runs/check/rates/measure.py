"""The measurement of a device: rounds over all operators, the host and copies, until the time is over."""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

import torch

from shoestring.hardware import probe
from shoestring.hardware.catalog import Target
from shoestring.hardware.measured import CopyTiming, MeasuredDevice, MeasuredRates, OperatorTiming
from shoestring.hardware.occupancy import occupancy
from shoestring.planning.trace.record import Op
from shoestring.planning.trace.recorder import Recorder
from shoestring.runs.check.rates import grid as grids
from shoestring.runs.check.rates.clock import repeats_for, sample, summarize
from shoestring.runs.check.rates.copies import Copy, copy_samples
from shoestring.runs.check.rates.grid import Grid
from shoestring.runs.check.rates.host import HostClock
from shoestring.runs.check.rates.operators import DTYPES, Operands, Subject, subjects
from shoestring.version import __version__

Progress = Callable[[float], object]
"""Is called with the seconds that are left."""

_HOST_UPDATES = 9
"""Updates of the small network in one sample of the host's time."""
_MAX_ALTERNATIVES = 16
_LARGE = 2**18
"""Values from which operands alternate: a megabyte."""
_BUSY_LOAD = 0.25
"""Processes that wait for a core, as a share of the cores, from which the CPU counts as busy."""


def measure_rates(target: Target, *, grid: Grid | None = None, progress: Progress = lambda _: None) -> MeasuredRates:
    """Measure the device of `target`, which is one of this machine.

    Raises what torch raises if it cannot use the device.
    """
    device = torch.device(target.device.kind)
    grid = grid or (grids.GPU if device.type == "cuda" else grids.CPU)
    warnings = busy_warnings(target)
    rounds = _Rounds(grid, device, target)
    _run(rounds, grid, progress)
    return MeasuredRates(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        device=_describe(target),
        versions=_versions(),
        warnings=warnings,
        operators=tuple(rounds.operators()),
        host={name: summarize(samples) for name, samples in rounds.host_samples.items()},
        copies=tuple(
            CopyTiming(kind=kind, bytes=size, **vars(summarize(samples)))
            for (kind, size), samples in rounds.copy_samples.items()
        ),
    )


def busy_warnings(target: Target) -> tuple[str, ...]:
    """Return a sentence for each other use of the device, which makes it look slower than it is."""
    if target.device.kind == "cuda":
        driver = occupancy()
        own = os.getpid()
        holders = {
            holder.name or f"process {holder.pid}"
            for card in (driver.cards if driver else ())
            for holder in card.holders
            if card.is_visible and holder.pid != own
        }
        return tuple(f"the GPU was in use by {holder} while it was measured" for holder in sorted(holders))
    load, cores = os.getloadavg()[0], probe.cores()
    if load <= _BUSY_LOAD * cores:
        return ()
    return (f"the CPU was in use while it was measured: a load of {load:.1f} on {cores} cores",)


class _Rounds:
    """The samples of all operators, of the host and of copies."""

    def __init__(self, grid: Grid, device: torch.device, target: Target) -> None:
        self.grid, self.device, self.gpus = grid, device, target.gpus
        self.subjects = list(subjects(grid, target.device.precisions))
        self.samples: list[list[float]] = [[] for _ in self.subjects]
        self.host_samples: dict[str, list[float]] = defaultdict(list)
        self.copy_samples: dict[Copy, list[float]] = defaultdict(list)
        self._records: list[Op | None] = [None] * len(self.subjects)
        self._repeats = [1] * len(self.subjects)
        self._host = HostClock(device)
        largest = max(subject.values for subject in self.subjects) + 2**19
        self._operands = {
            subject.precision: Operands(device, DTYPES[subject.precision], largest)
            for subject in {subject.precision: subject for subject in self.subjects}.values()
        }

    def warm_up(self) -> Iterator[float]:
        """Record each operator and find its repeats; yield the share that is done."""
        for number, subject in enumerate(self.subjects):
            call = self._make(subject)
            self._records[number] = self._record(subject, call)
            self._repeats[number] = repeats_for(call, self.grid.sample_seconds, self.device)
            yield (number + 1) / len(self.subjects)

    def round(self) -> Iterator[float]:
        """Take one sample of everything; yield the share that is done."""
        with torch.enable_grad():
            for name, seconds in self._host.sample(_HOST_UPDATES).items():
                self.host_samples[name].append(seconds)
        for copy, seconds in copy_samples(self.grid, self.device, self.gpus):
            self.copy_samples[copy].append(seconds)
        for number, subject in enumerate(self.subjects):
            self.samples[number].append(sample(self._make(subject), self._repeats[number], self.device))
            yield (number + 1) / len(self.subjects)

    def operators(self) -> Iterator[OperatorTiming]:
        """Yield the timings of all operators."""
        for subject, record, samples in zip(self.subjects, self._records, self.samples, strict=True):
            assert record
            yield OperatorTiming(
                operator=record.name,
                precision=subject.precision,
                layout=subject.layout,
                flops=record.flops,
                bytes=max(1, record.bytes),
                launches=record.launches,
                shape=record.shape,
                **vars(summarize(samples)),
            )

    def _make(self, subject: Subject) -> Callable[[], Any]:
        operands = self._operands[subject.precision]
        operands.restart()
        count = min(_MAX_ALTERNATIVES, self.grid.cold_values // subject.values) if subject.values >= _LARGE else 1
        calls = [subject.make(operands) for _ in range(max(1, count))]
        if len(calls) == 1:
            return calls[0]
        # The results are kept as long as an update would, so that they do not take the place of the one before.
        results: deque[Any] = deque(maxlen=len(calls))
        alternating = cycle(calls)
        return lambda: results.append(next(alternating)())

    def _record(self, subject: Subject, call: Callable[[], Any]) -> Op:
        """Return the operator as the trace of a recipe would have it; the one with most bytes if there are several."""
        recorder = Recorder(lambda tensor: tensor.device.type == self.device.type)
        with recorder:
            call()
        records = [event for event in recorder.log.record()[1] if isinstance(event, Op)]
        largest = max(records, key=lambda record: record.bytes)
        if subject.replaces is None:
            return largest
        name, flops, launches = subject.replaces
        return Op(name, flops, subject.bytes or largest.bytes, subject.precision, launches)


@torch.no_grad()
def _run(rounds: _Rounds, grid: Grid, progress: Progress) -> None:
    """Take at least the least number of rounds, and more while they fit into the grid's time."""
    start = time.monotonic()
    min_rounds, max_rounds = grid.rounds

    def seconds_left(rounds_done: float) -> float:
        elapsed = time.monotonic() - start
        return max(grid.seconds - elapsed, elapsed * (1 + min_rounds - rounds_done) / rounds_done, 0.0)

    for share in rounds.warm_up():  # takes about as long as a round
        progress(seconds_left(share))
    for number in range(max_rounds):
        round_start = time.monotonic()
        for share in rounds.round():
            progress(seconds_left(1 + number + share))
        end = time.monotonic()
        if number + 1 >= min_rounds and end + (end - round_start) > start + grid.seconds:
            return


def _describe(target: Target) -> MeasuredDevice:
    device = target.device
    return MeasuredDevice(
        name=device.name,
        title=device.title,
        kind=device.kind,
        memory_bytes=device.memory_bytes,
        compute_capability=device.compute_capability,
        gpus=target.gpus,
        cores=probe.cores(),
        threads=torch.get_num_threads(),
    )


def _versions() -> dict[str, str]:
    cudnn = torch.backends.cudnn.version() if torch.cuda.is_available() else None
    driver = probe.machine()["driver"]
    versions = {
        "shoestring": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "driver": driver,
    }
    return {name: version for name, version in versions.items() if version}
