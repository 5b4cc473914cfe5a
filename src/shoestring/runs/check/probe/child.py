"""The child process of a probe. It builds the session of a run, makes a few updates and evaluates a few batches.

The session is that of training: the same data, model, order and steps, or the library's trainer. It has a directory of
its own, saves nothing, and ends as a session at its limit does, when enough is measured.

The request is a JSON object on standard input. For each stage, a line of JSON is written to standard output:

{"stage": "start", "seconds": 3.1, "resident_bytes"} the imports are done, so long after the start of the process
{"stage": "data", "samples": 733, "seconds": 0.4}    data() is loaded
{"stage": "model", "seconds", "stages": 1, "total_updates", "mean_length"}             the session is built
{"stage": "update", "number": 0, "loss_stage": 0, "purpose": "", "seconds", "samples", "loss", "waiting_seconds",
 "disturbed_share", "length", "bytes": 123, "host_bytes"}  one for each update, with the peaks of memory until then; for
                                                     its memory alone if its purpose is "longest" (sample) or "later"
{"stage": "updates", "growth_bytes", "state_bytes", "device", "micro_batch", "loss"}  the first ones are made
{"stage": "evaluation", "seconds": [0.1, 0.1], "samples": [8, 8], "left_bytes", "bytes", "host_bytes"}  of each piece
{"stage": "answer", "seconds": 1.2, "count": 8, "is_complete": true, "bytes", "host_bytes"}  prompts are answered
{"stage": "loading", "samples": 64, "seconds": 0.2}  for a check: more samples were loaded in this process
{"stage": "randomness", "samples": 4, "skipped": "", "difference": "", "generators": []}  for a check: samples were
                                                     fetched twice; the generators that the data holds
{"stage": "loss", "unseeded": "", "changed": ""}     for a check: why the loss cannot be repeated; its state
{"stage": "halves", "difference": "the loss ..."}    for a check: the loss of a microbatch differs from its halves'
{"stage": "done"}
{"stage": "error", "during": "an update", "message", "hint", "memory"}  what ended the probe; was it out of memory?
"""

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.failures import exits_as_errors
from shoestring.base.processes import started_at
from shoestring.runs.check.child import read_request
from shoestring.runs.check.memory import read_status
from shoestring.runs.check.probe.enough import Budget
from shoestring.runs.check.probe.stand_in import WithStandInData
from shoestring.runs.check.reporting import Report, error_stage, reporting

if TYPE_CHECKING:
    from shoestring.runs.check.probe.context import Context
    from shoestring.training.library_loop import LibraryLoop
    from shoestring.training.training_session import TrainingSession

_STAND_IN_UPDATES = 16


def run_probe(request: Mapping[str, Any], report: Report, *, started: float) -> None:
    """Make the probe of `request` in this process, which was `started` then, and report each stage."""
    import torch

    from shoestring.runs.check.probe.context import Context

    # Setting the number that is set anyway has made updates of 0.1 s take 10 s on a busy machine: the OpenMP of GNU
    # then lets threads spin while they wait for others.
    if request["threads"] not in (None, torch.get_num_threads()):
        torch.set_num_threads(request["threads"])
    device = torch.device(request["device"])
    with ExitStack() as stack:
        context = Context(report=report, budget=Budget(request["seconds"], started), device=device, stack=stack)
        try:
            with exits_as_errors():
                _run(request, context)
        except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
            report({**error_stage(error), "during": context.phase})


def _run(request: Mapping[str, Any], context: "Context") -> None:
    from shoestring.runs.check.probe.comparisons import compare
    from shoestring.runs.check.probe.evaluating import answer, evaluate
    from shoestring.runs.check.probe.updates import EngineProbe, make_library_updates, report_updates

    session, library = _build(request, context)
    context.stack.enter_context(session.record.progress)
    context.stack.enter_context(session.saver)
    context.phase, recipe = "an update", session.request.recipe
    engine = None
    if library:
        make_library_updates(context, session, library)
    else:
        assert session.updates is not None
        context.stack.enter_context(session.updates.loader)
        engine = EngineProbe(context, session)
        engine.make()
    report_updates(context, session)
    if request["is_check"] and engine and not isinstance(recipe.recipe, WithStandInData):
        compare(context, session)
    if "validation" in context.data and (
        engine or recipe.parts.evaluation.measured or recipe.parts.evaluation.evaluate
    ):
        context.phase = "an evaluation"
        evaluate(context, replace(session, data=context.data))
    if recipe.parts.evaluation.answers:
        context.phase = "an answer to a held-out prompt"
        answer(context, session)
    if engine and context.phase != "an update":
        context.phase = "an update after an evaluation"
        engine.make_later_ones()
    context.report({"stage": "done"})


def _build(request: Mapping[str, Any], context: "Context") -> tuple["TrainingSession", "LibraryLoop | None"]:
    """Return the session of a new run, without the parts to evaluate on, and the loop of a library's trainer."""
    from shoestring.base.settings import Settings
    from shoestring.recipe.finding import load
    from shoestring.training.engine.determinism import deterministic_shards
    from shoestring.training.engine.malloc import keeping_freed_memory
    from shoestring.training.engine.memory import explaining_out_of_memory
    from shoestring.training.fp16_overflow import mend_overflow
    from shoestring.training.record import Record
    from shoestring.training.replay_saver import ReplaySaver
    from shoestring.training.request import SessionRequest
    from shoestring.training.run_directory.directory import RunDirectory
    from shoestring.training.session.signals import StopSignals
    from shoestring.training.session.stop import Stop
    from shoestring.training.setup import build_session, load_data

    loaded = load(request["reference"], request["options"])
    if loaded.parts.data.data is None:
        loaded = replace(loaded, recipe=WithStandInData(loaded.recipe, _STAND_IN_UPDATES * loaded.effective_batch))
    library: Any = None
    if loaded.parts.learning.trainer:
        from shoestring.integrations.library import LibraryUpdates

        library = LibraryUpdates()
        context.stack.callback(library.close)
    session_request = SessionRequest(
        loaded=loaded,
        settings=Settings.from_json(request["settings"]),
        run=RunDirectory(Path(request["folder"])),
        target=request["target"],
        device=context.device,
        stop=Stop(deadline=context.deadline, signals=StopSignals()),
        allow_inexact=True,
    )
    context.stack.enter_context(keeping_freed_memory(context.device))
    context.stack.enter_context(deterministic_shards(session_request.shards.count, context.device))
    record = context.stack.enter_context(
        Record(session_request.run, loaded, context.deadline, target=session_request.target)
    )
    context.stack.enter_context(explaining_out_of_memory("training"))
    context.report({"stage": "start", "seconds": context.elapsed(), "resident_bytes": read_status("VmRSS")})
    started = time.monotonic()
    session_request, context.data, _ = load_data(session_request, record)
    samples, seconds = len(context.data["train"]), time.monotonic() - started
    context.report({"stage": "data", "samples": samples, "seconds": seconds})
    _warm_up(context.device)
    context.loaded()

    def make_saver(environment: dict[str, Any], _: Any = None) -> ReplaySaver:
        return ReplaySaver(session_request, record, environment, None, [])

    train = {"train": context.data["train"]}
    build = partial(build_session, session_request, record, train, None, make_saver, library)
    return replace(mend_overflow(build(), build), is_discarded=True), library


def _warm_up(device: Any) -> None:
    """Make the libraries allocate their one-time memory, which an estimate of a model's tensors does not include."""
    import torch

    from shoestring.techniques.deferred_compiler import defer_compiler

    defer_compiler()  # as in training: the optimizer would import it
    layer = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(8, 64, device=device)).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    run_probe(read_request(), reporting(), started=started_at())
    os._exit(0)  # everything is closed; Python and the libraries would take seconds to leave
