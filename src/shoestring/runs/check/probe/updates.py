"""The updates of a probe, by the engine or by a library's trainer."""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shoestring.hardware.cpu_rates import waited_seconds
from shoestring.planning.estimate.disk import SMALL_FILES
from shoestring.runs.check.probe.context import Context
from shoestring.runs.check.probe.enough import LEAST_UPDATES
from shoestring.runs.check.probe.lengths import Lengths
from shoestring.runs.check.probe.meter import ProbeMeter
from shoestring.training import steps
from shoestring.training.engine.environment import device_name
from shoestring.training.monitor.events import read
from shoestring.training.oom import persistent_bytes
from shoestring.training.session.stop import SessionOver
from shoestring.training.training_session import TrainingSession

if TYPE_CHECKING:
    from shoestring.training.library_loop import LibraryLoop

_MOST_STAGED_UPDATES = 100_000
"""Among which the stages of the loss are looked for."""
_LATER_UPDATES = 2
_MOST_DISTURBED = 0.9
"""The largest share that is told apart: threads that wait for each other also wait for a processor."""


@dataclass
class _Progress:
    """What is known of the updates so far."""

    since: float
    waited: float = field(default_factory=waited_seconds)
    """How long the threads of this process had waited for a processor before the update."""
    number: int = 0
    loss_stage: int = 0
    purpose: str = ""
    durations: list[float] = field(default_factory=list)


class EngineProbe:
    """Makes updates of a session whose updates are the engine's."""

    def __init__(self, context: Context, session: TrainingSession) -> None:
        self._context, self._meter = context, ProbeMeter()
        assert session.updates is not None
        self._updates = session.updates
        self._session = replace(session, updates=replace(session.updates, meter=self._meter), reports=self._meter)
        recipe, micro_batch = session.request.recipe.recipe, session.state.sizes.micro_batch
        self._lengths = Lengths(recipe, context.data["train"], self._updates.order, self._updates.loader, micro_batch)
        self._waiting_seconds = 0.0

    def make(self) -> None:
        """Make the first updates of the run, and the one with the longest sample."""
        stages, longest = _stages(self._session), self._lengths.longest_update()
        _report_model(self._context, self._session, len(set(stages)) or 1, self._lengths.mean())
        least = max(LEAST_UPDATES + (longest is not None), 2 * len(set(stages)))
        progress = _Progress(since=time.monotonic())
        total = self._updates.state.total_updates
        for progress.number, progress.loss_stage, progress.purpose in _numbers(total, stages, longest):
            self._make_one(progress)
            if self._context.budget.has_updates(progress.durations, time.monotonic(), least):
                break

    def make_later_ones(self) -> None:
        """Make updates again after an evaluation: what that has left in memory is beside what they need."""
        progress = _Progress(since=time.monotonic(), purpose="later")
        for progress.number in range(min(_LATER_UPDATES, self._updates.state.total_updates)):
            duration = progress.durations[-1] if progress.durations else 0.0
            if not self._context.budget.has_time_for(duration, time.monotonic()):
                return
            self._make_one(progress)

    def _make_one(self, progress: _Progress) -> None:
        # Nothing but its number is the position of an update, so any of them can be the next.
        self._updates.state.update = progress.number
        steps.one_update(self._session)
        before, self._waiting_seconds = self._waiting_seconds, self._updates.loader.waiting_seconds
        _report_update(
            self._context,
            progress,
            samples=self._meter.samples,
            loss=self._meter.loss,
            waiting_seconds=self._waiting_seconds - before,
            length=self._lengths.of_update(progress.number),
        )


def make_library_updates(context: Context, session: TrainingSession, library: "LibraryLoop") -> None:
    """Make the first updates of the run by the library's trainer, until the deadline ends it."""
    _report_model(context, session, 1, None)
    progress, samples = _Progress(since=time.monotonic()), session.request.recipe.effective_batch

    def is_enough() -> bool:
        _report_update(context, progress, samples=samples, loss=None, waiting_seconds=None, length=None)
        progress.number += 1
        return context.budget.has_updates(progress.durations, time.monotonic())

    context.deadline.observing("update", is_enough)
    with suppress(SessionOver):
        library.run(session)


def report_updates(context: Context, session: TrainingSession) -> None:
    """Report what the updates needed, and the loss of a library's first updates, which its trainer has logged."""
    sizes = persistent_bytes(session.state)
    saved = ("gradients", "optimizer states", "averaged weights", "buffers")  # each trained weight has a gradient
    losses = [event.get("loss") for event in read(session.request.run.events_file) if event["event"] == "progress"]
    context.report(
        {
            "stage": "updates",
            "growth_bytes": context.growth_bytes(),
            "state_bytes": sum(sizes[name] for name in saved) + SMALL_FILES,
            "device": device_name(context.device),
            "micro_batch": session.state.sizes.micro_batch,
            "loss": losses[0] if losses else None,
        }
    )


def _report_model(context: Context, session: TrainingSession, stages: int, mean_length: float | None) -> None:
    context.report(
        {
            "stage": "model",
            "seconds": context.elapsed(),
            "stages": stages,
            "total_updates": session.state.total_updates,
            "mean_length": mean_length,
        }
    )


def _disturbed_share(context: Context, waited: float, seconds: float) -> float:
    """Return the share of an update in which other processes had the processors of this one; 0 on a GPU."""
    if context.device.type != "cpu" or not seconds:
        return 0.0
    import torch

    return min(_MOST_DISTURBED, max(0.0, waited) / (seconds * torch.get_num_threads()))


def _report_update(context: Context, progress: _Progress, **facts: Any) -> None:
    """Report an update that has just been made."""
    context.synchronize()
    seconds, progress.since = time.monotonic() - progress.since, time.monotonic()
    progress.durations.append(seconds)
    before, progress.waited = progress.waited, waited_seconds()
    context.report(
        {
            "stage": "update",
            "number": progress.number,
            "loss_stage": progress.loss_stage,
            "purpose": progress.purpose,
            "seconds": seconds,
            "disturbed_share": _disturbed_share(context, progress.waited - before, seconds),
            **facts,
            **context.peaks(),
        }
    )


def _stages(session: TrainingSession) -> list[int]:
    """Return the number of the stage of each of the run's first updates, if the recipe declares its stages.

    There are so many that each declared stage has two updates; a stage without updates is left out.
    """
    parts, updates = session.request.recipe.parts, session.updates
    assert updates is not None
    if parts.learning.stage is None or parts.learning.stages is None:
        return []
    total, names, stages = updates.state.total_updates, list(parts.learning.stages), list[int]()
    counts = Counter[int]()
    for number in range(min(total, _MOST_STAGED_UPDATES)):
        stages.append(names.index(parts.learning.stage(number, updates.order.updates_per_epoch, total)))
        counts[stages[-1]] += 1
        if len(counts) == len(names) and min(counts.values()) > 1:
            break
    return stages


def _numbers(total: int, stages: list[int], longest: int | None) -> Iterator[tuple[int, int, str]]:
    """Yield the updates to make, each with the stage of its loss, and its purpose: empty, or "longest".

    A short run begins again. Stages, which may follow one another after many updates, take turns.
    """
    if stages:
        by_stage = [[number for number, other in enumerate(stages) if other == stage] for stage in sorted(set(stages))]
        for turn in itertools.count():
            for numbers in by_stage:
                number = numbers[turn % len(numbers)]
                yield number, stages[number], ""
    for count in itertools.count():
        yield count % total, 0, ""
        if count == 1 and longest is not None:
            yield longest, 0, "longest"
