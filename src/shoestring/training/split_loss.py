"""The report of what would make a run inexact, before its first update, and again when it is resumed: data or a loss
with random numbers that are not seeded, and a loss that changes with the microbatch or with its own earlier calls.
"""

from dataclasses import replace

from shoestring.base.errors import UsageError
from shoestring.training.data.repeatable import compare_fetches
from shoestring.training.engine.halves import examine_loss
from shoestring.training.first_microbatch import first_microbatch
from shoestring.training.monitor.events import read
from shoestring.training.processes.steps import with_whole_model
from shoestring.training.training_session import TrainingSession


def report_irregularities(session: TrainingSession) -> None:
    """Note before the first update what the data and the loss depend on besides seeds and samples. A run that is
    resumed is told so if it is not exact.

    Raises SessionOver when the session has to stop.
    """
    updates = session.updates
    if updates is None or not updates.state.total_updates:
        return
    if updates.state.update:
        _report_earlier(session)
        return
    _report_data(session)
    _report_loss(session)


def _report_earlier(session: TrainingSession) -> None:
    """Note why this run is not exact, as an earlier session has recorded it."""
    events = [event for event in read(session.request.run.events_file) if event["event"] == "unseeded"]
    for source in sorted({str(event.get("source")) for event in events}):
        session.record.note(
            f"this run does not continue bit for bit, because the {source} has random numbers that Shoestring does not "
            "seed: see the note of its first session"
        )


def _report_data(session: TrainingSession) -> None:
    updates, request = session.updates, session.request
    assert updates is not None
    request.stop.check()
    members = updates.loader.parts(0, updates.state.sizes.micro_batch)[0]
    comparison = compare_fetches(updates.loader, members)
    session.reports.restart()
    if comparison.difference:
        session.record.unseeded("data", comparison.text)


@with_whole_model
def _report_loss(session: TrainingSession) -> None:
    request, updates = session.request, session.updates
    assert updates is not None
    if request.recipe.parts.learning.whole_batch:
        return
    state = updates.state
    versions = state.parameter_versions()
    report = examine_loss(first_microbatch(session))
    state.reset_trained()
    difference = report.difference
    if state.parameter_versions() != versions:
        # The loss changes parameters itself. The checkpoint before the first update has them as they were.
        session.saver.restore(state, allow_inexact=request.allow_inexact)
        difference = None
    session.reports.restart()
    if difference and request.settings.packing == "yes":
        raise UsageError(
            f"packed samples attend to each other: the loss of the first microbatch is {difference.whole:.6g}, and "
            f"{difference.halves:.6g} for the same samples one by one",
            hint="this model cannot be trained with packed rows: --set packing=no",
        )
    if report.is_unseeded:
        session.record.unseeded("loss", report.unseeded_text)
    # The model's buffers are compared in the first update, whose note names all that have changed (`steps.py`).
    buffers = {f"model.{name}" for name, _ in state.model.named_buffers()}
    report = replace(report, changed=[name for name in report.changed if name not in buffers])
    for text in (report.changed_text, difference.text if difference else ""):
        if text:
            session.record.note(text)
