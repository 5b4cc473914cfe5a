"""The report of a loss that changes with the microbatch, before the first update of a run."""

from shoestring.base.errors import UsageError
from shoestring.training.engine.halves import compare_with_halves
from shoestring.training.first_microbatch import first_microbatch
from shoestring.training.processes.steps import with_whole_model
from shoestring.training.training_session import TrainingSession


@with_whole_model
def report_split_loss(session: TrainingSession) -> None:
    """Note if the loss of the first microbatch is not that of its halves, unless no update is ever split.

    Raises SessionOver when the session has to stop.
    """
    request, updates = session.request, session.updates
    if updates is None or request.recipe.parts.learning.whole_batch:
        return
    state = updates.state
    if state.update or not state.total_updates:
        return
    versions = state.parameter_versions()
    difference = compare_with_halves(first_microbatch(session))
    state.reset_trained()
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
    if difference:
        session.record.note(difference.text)
