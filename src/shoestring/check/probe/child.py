"""The child process of a probe. It builds the session of a run, makes a few updates and evaluates a few batches.

The session is that of training: the same data, model, order and steps, or the library's trainer. It has a directory of
its own, saves nothing, and ends as a session at its limit does, when enough is measured.

The request is a JSON object on standard input. For each stage, a line of JSON is written to standard output:

{"stage": "start", "seconds": 3.1}                   the imports are done, so long after the start of the process
{"stage": "data", "samples": 733, "seconds": 0.4}    data() is loaded
{"stage": "model", "seconds", "stages": 1, "total_updates", "mean_length"}             the session is built
{"stage": "update", "number": 0, "loss_stage": 0, "seconds", "samples", "loss", "waiting_seconds", "length", "longest",
 "bytes": 123, "host_bytes": 456}                    one for each update, with the peaks of memory until then
{"stage": "updates", "growth_bytes", "state_bytes", "device", "micro_batch", "loss"}  all of them are made
{"stage": "evaluation", "seconds": [0.1, 0.1], "samples": [8, 8], "bytes", "host_bytes"}  of each piece, and the peaks
{"stage": "answer", "seconds": 1.2}                  a held-out prompt is answered
{"stage": "loading", "samples": 64, "seconds": 0.2}  for a check: more samples were loaded in this process
{"stage": "halves", "difference": "the loss ..."}    for a check: the loss of a microbatch differs from its halves'
{"stage": "done"}
{"stage": "error", "during": "an update", "message", "hint", "memory"}  what ended the probe; was it out of memory?
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.check.child import read_request
from shoestring.check.memory import peak_bytes, read_status, reset_peak
from shoestring.check.probe.enough import LEAST_UPDATES, Budget
from shoestring.check.probe.stand_in import WithStandInData
from shoestring.check.reporting import Report, error_stage, reporting
from shoestring.failures import exits_as_errors
from shoestring.processes import started_at

if TYPE_CHECKING:
    from shoestring.train.session import TrainingSession

LOADED_SAMPLES, LOADING_SECONDS = 256, 5.0
"""The measurement of loading ends after so many samples or seconds."""
_MOST_STAGED_UPDATES = 100_000
"""Among which the stages of the loss are looked for."""


def run_probe(request: dict[str, Any], report: Report, *, started: float) -> None:
    """Make the probe of `request` in this process, which was `started` then, and report each stage."""
    with ExitStack() as stack:
        probe = _Probe(request, report, Budget(request["seconds"], started), stack)
        try:
            with exits_as_errors():
                probe.run()
        except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
            report({**error_stage(error), "during": probe.phase})


@dataclass
class _Progress:
    """What is known of the updates so far."""

    since: float
    number: int = 0
    loss_stage: int = 0
    is_longest: bool = False
    waiting_seconds: float = 0.0
    durations: list[float] = field(default_factory=list)


class _Probe:
    def __init__(self, request: Mapping[str, Any], report: Report, budget: Budget, stack: ExitStack) -> None:
        self._request, self._report, self._budget, self._stack = request, report, budget, stack
        self._loading_peak = {"bytes": 0, "host_bytes": 0}
        self.phase = "the start"
        """What the probe is doing."""

    def run(self) -> None:
        import torch

        # Setting the number that is set anyway has made updates of 0.1 s take 10 s on a busy machine: the OpenMP of GNU
        # then lets threads spin while they wait for others.
        if self._request["threads"] not in (None, torch.get_num_threads()):
            torch.set_num_threads(self._request["threads"])
        self._device = torch.device(self._request["device"])
        session, data = self._build()
        self._stack.enter_context(session.record.progress)
        self._stack.enter_context(session.saver)
        self.phase = "an update"
        if session.updates:
            self._stack.enter_context(session.updates.loader)
            self._make_updates(session)
        else:
            self._make_library_updates(session)
        self._report_updates(session)
        if self._request["is_check"]:
            self._check(session)
        parts = session.request.recipe.parts
        if "validation" in data and (session.updates or parts.measured or parts.evaluate):
            self.phase = "an evaluation"
            self._evaluate(replace(session, data=data))
        if parts.answers:
            self.phase = "an answer to a held-out prompt"
            self._answer(session)
        self._report({"stage": "done"})

    def _build(self) -> tuple["TrainingSession", dict[str, Any]]:
        """Return the session of a new run, without the parts to evaluate on, and its data by part."""
        from shoestring.check.probe.deadline import ProbeDeadline
        from shoestring.engine.determinism import deterministic_shards
        from shoestring.engine.memory import explaining_out_of_memory
        from shoestring.recipe.finding import load
        from shoestring.session.directory import RunDirectory
        from shoestring.session.signals import StopSignals
        from shoestring.session.stop import Stop
        from shoestring.settings import Settings
        from shoestring.train.fp16_overflow import mend_overflow
        from shoestring.train.record import Record
        from shoestring.train.replay_saver import ReplaySaver
        from shoestring.train.request import SessionRequest
        from shoestring.train.setup import build_session, load_data

        loaded = load(self._request["reference"], self._request["options"])
        if loaded.parts.data is None:
            loaded = replace(loaded, recipe=WithStandInData(loaded.recipe, 16 * loaded.effective_batch))
        library: Any = None
        if loaded.parts.trainer:
            from shoestring.integrations.library import LibraryUpdates

            library = LibraryUpdates()
            self._stack.callback(library.close)
        self._library, self._deadline = library, ProbeDeadline()
        request = SessionRequest(
            loaded=loaded,
            settings=Settings.from_json(self._request["settings"]),
            run=RunDirectory(Path(self._request["folder"])),
            target=self._request["target"],
            device=self._device,
            stop=Stop(deadline=self._deadline, signals=StopSignals()),
            allow_inexact=True,
        )
        self._stack.enter_context(deterministic_shards(request.shards.count, self._device))
        record = self._stack.enter_context(Record(request.run, loaded, self._deadline, target=request.target))
        self._stack.enter_context(explaining_out_of_memory("training"))
        self._report({"stage": "start", "seconds": self._elapsed()})
        started = time.monotonic()
        request, data, _ = load_data(request, record)
        seconds = time.monotonic() - started
        self._report({"stage": "data", "samples": len(data["train"]), "seconds": seconds})
        self._train = data["train"]
        warm_up(self._device)
        self._loading_peak = self._peaks()
        self._initial_bytes = reset_peak(self._device)

        def make_saver(environment: dict[str, Any], _: Any = None) -> ReplaySaver:
            return ReplaySaver(request, record, environment, None, [])

        build = partial(build_session, request, record, {"train": data["train"]}, None, make_saver, library)
        return replace(mend_overflow(build(), build), is_discarded=True), data

    def _make_updates(self, session: "TrainingSession") -> None:
        """Make updates by the engine: the first ones of the run, and the one with the longest sample."""
        from shoestring.check.probe.lengths import Lengths
        from shoestring.check.probe.meter import ProbeMeter
        from shoestring.train import steps

        updates, meter, recipe = session.updates, ProbeMeter(), session.request.recipe
        assert updates is not None
        state, order = updates.state, updates.order
        session = replace(session, updates=replace(updates, meter=meter), reports=meter)
        lengths = Lengths(recipe.recipe, self._train, order, updates.loader, state.sizes.micro_batch)
        stages = _stages(session)
        self._report_model(session, len(set(stages)) or 1, lengths.mean())
        longest = lengths.longest_update()
        least = max(LEAST_UPDATES + (longest is not None), 2 * len(set(stages)))
        progress = _Progress(since=time.monotonic())
        for number, loss_stage, is_longest in _numbers(state.total_updates, stages, longest):
            # Nothing but its number is the position of an update, so any of them can be the next.
            state.update = progress.number = number
            progress.loss_stage, progress.is_longest = loss_stage, is_longest
            steps.one_update(session)
            facts = {"samples": meter.samples, "loss": meter.loss, "length": lengths.of_update(progress.number)}
            waiting, progress.waiting_seconds = progress.waiting_seconds, updates.loader.waiting_seconds
            self._add_update(progress, waiting_seconds=progress.waiting_seconds - waiting, **facts)
            if self._budget.has_updates(progress.durations, time.monotonic(), least):
                break

    def _make_library_updates(self, session: "TrainingSession") -> None:
        """Make the first updates of the run by the library's trainer, until the deadline ends it."""
        from shoestring.session.stop import SessionOver

        self._report_model(session, 1, None)
        progress, samples = _Progress(since=time.monotonic()), session.request.recipe.effective_batch

        def is_enough() -> bool:
            self._add_update(progress, samples=samples, loss=None, waiting_seconds=None, length=None)
            progress.number += 1
            return self._budget.has_updates(progress.durations, time.monotonic())

        self._deadline.observing("update", is_enough)
        with suppress(SessionOver):
            self._library.run(session)

    def _add_update(self, progress: _Progress, **facts: Any) -> None:
        """Report an update that has just been made."""
        self._synchronize()
        seconds, progress.since = time.monotonic() - progress.since, time.monotonic()
        progress.durations.append(seconds)
        self._report(
            {
                "stage": "update",
                "number": progress.number,
                "loss_stage": progress.loss_stage,
                "longest": progress.is_longest,
                "seconds": seconds,
                **facts,
                **self._peaks(),
            }
        )

    def _report_model(self, session: "TrainingSession", stages: int, mean_length: float | None) -> None:
        self._report(
            {
                "stage": "model",
                "seconds": self._elapsed(),
                "stages": stages,
                "total_updates": session.state.total_updates,
                "mean_length": mean_length,
            }
        )

    def _report_updates(self, session: "TrainingSession") -> None:
        """Report what the updates needed, and the loss of a library's first updates, which its trainer has logged."""
        from shoestring.engine.environment import device_name
        from shoestring.estimate.disk import SMALL_FILES
        from shoestring.monitor.events import read
        from shoestring.train.oom import persistent_bytes

        sizes = persistent_bytes(session.state)
        kept = ("gradients", "optimizer states", "averaged weights", "buffers")  # each trained weight has a gradient
        losses = [event.get("loss") for event in read(session.request.run.events_file) if event["event"] == "progress"]
        self._report(
            {
                "stage": "updates",
                "growth_bytes": peak_bytes(self._device) - self._initial_bytes,
                "state_bytes": sum(sizes[name] for name in kept) + SMALL_FILES,
                "device": device_name(self._device),
                "micro_batch": session.state.sizes.micro_batch,
                "loss": losses[0] if losses else None,
            }
        )

    def _evaluate(self, session: "TrainingSession") -> None:
        """Evaluate some batches of the validation part, at most all of them."""
        from shoestring.session.stop import SessionOver
        from shoestring.train import steps
        from shoestring.train.weights import weights_for_use

        since, durations, samples = time.monotonic(), list[float](), [0]

        def is_enough() -> bool:
            nonlocal since
            self._synchronize()
            durations.append(time.monotonic() - since)
            samples.append(self._deadline.samples["evaluation"])
            since = time.monotonic()
            return self._budget.has_evaluation(durations, since)

        self._deadline.observing("evaluation batch", is_enough)
        with suppress(SessionOver), weights_for_use(session):
            steps.evaluate_on(session, "validation")
        sizes = [after - before for before, after in itertools.pairwise(samples)]
        self._report({"stage": "evaluation", "seconds": durations, "samples": sizes, **self._peaks()})

    def _answer(self, session: "TrainingSession") -> None:
        """Answer a held-out prompt; all of them if the recipe returns a list."""
        from shoestring.train.undisturbed import compute_undisturbed
        from shoestring.train.weights import weights_for_use

        answers = session.request.recipe.parts.answers
        assert answers is not None

        def first_rows() -> int:
            rows = answers(session.state.model)
            return len(rows) if isinstance(rows, list | tuple) else len(list(itertools.islice(rows, 1)))

        started = time.monotonic()
        count = compute_undisturbed(session, "answers", first_rows, weights=weights_for_use(session))
        self._synchronize()
        if isinstance(count, int) and count:
            self._report({"stage": "answer", "seconds": (time.monotonic() - started) / count})

    def _check(self, session: "TrainingSession") -> None:
        """Measure loading in this process, and compare the loss of a microbatch with that of its halves."""
        from shoestring.data.loading import Loader
        from shoestring.engine.halves import compare_with_halves
        from shoestring.train.first_microbatch import first_microbatch

        updates, request = session.updates, session.request
        if updates is None or isinstance(request.recipe.recipe, WithStandInData):
            return
        loader = Loader(
            request.recipe.recipe,
            self._train,
            updates.order,
            seed=request.recipe.seed,
            device=self._device,
            workers=0,
            packing=request.settings.packing == "yes",
            memory_format=request.settings.memory_format,
        )
        samples, seconds = _measure_loading(loader, updates.order.updates_per_epoch, session.state.sizes.micro_batch)
        self._report({"stage": "loading", "samples": samples, "seconds": seconds})
        if request.recipe.parts.whole_batch:
            return
        if difference := compare_with_halves(first_microbatch(session)):
            self._report({"stage": "halves", "difference": difference.text})

    def _elapsed(self) -> float:
        return time.monotonic() - self._budget.started

    def _peaks(self) -> dict[str, int]:
        """Return the peaks of the device's and of the host's memory since the start of the process."""
        host_bytes = max(read_status("VmHWM"), self._loading_peak["host_bytes"])
        if self._device.type == "cpu":
            return {"bytes": host_bytes, "host_bytes": host_bytes}
        return {"bytes": max(peak_bytes(self._device), self._loading_peak["bytes"]), "host_bytes": host_bytes}

    def _synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)


def _stages(session: "TrainingSession") -> list[int]:
    """Return the number of the stage of each of the run's first updates, if the recipe declares its stages.

    There are so many that each declared stage has two updates; a stage without updates is left out.
    """
    parts, updates = session.request.recipe.parts, session.updates
    assert updates is not None
    if parts.stage is None or parts.stages is None:
        return []
    total, names, stages = updates.state.total_updates, list(parts.stages), list[int]()
    counts = Counter[int]()
    for number in range(min(total, _MOST_STAGED_UPDATES)):
        stages.append(names.index(parts.stage(number, updates.order.updates_per_epoch, total)))
        counts[stages[-1]] += 1
        if len(counts) == len(names) and min(counts.values()) > 1:
            break
    return stages


def _numbers(total: int, stages: list[int], longest: int | None) -> Iterator[tuple[int, int, bool]]:
    """Yield the updates to make, each with the stage of its loss, and whether it is the one with the longest sample.

    A short run begins again. Stages, which may follow one another after many updates, take turns.
    """
    if stages:
        by_stage = [[number for number, other in enumerate(stages) if other == stage] for stage in sorted(set(stages))]
        for turn in itertools.count():
            for numbers in by_stage:
                number = numbers[turn % len(numbers)]
                yield number, stages[number], False
    for count in itertools.count():
        yield count % total, 0, False
        if count == 1 and longest is not None:
            yield longest, 0, True


def _measure_loading(loader: Any, updates: int, size: int) -> tuple[int, float]:
    """Load further updates in this process, the first one again if there is no other. Return samples and seconds."""
    samples, start = 0, time.perf_counter()
    for update in range(1, updates) if updates > 1 else [0]:
        for _, count in loader.microbatches(update, size):
            samples += count
            seconds = time.perf_counter() - start
            if samples >= LOADED_SAMPLES or seconds > LOADING_SECONDS:
                return samples, seconds
    return samples, time.perf_counter() - start


def warm_up(device: Any) -> None:
    """Make the libraries allocate their one-time memory, which an estimate of a model's tensors does not include."""
    import torch

    layer = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(8, 64, device=device)).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    run_probe(read_request(), reporting(), started=started_at())
    os._exit(0)  # everything is closed; Python and the libraries would take seconds to leave
