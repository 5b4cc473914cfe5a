"""The report of a loss that changes with the microbatch, before the first update of a run."""

import copy

from shoestring.engine.halves import compare_with_halves
from shoestring.engine.update import LossFunction
from shoestring.errors import UsageError
from shoestring.recipe.losses import loss_at
from shoestring.train.session import TrainingSession


def report_split_loss(session: TrainingSession) -> None:
    """Note if the loss of the first microbatch is not that of its halves, unless no update is ever split.

    Raises SessionOver when the session has to stop.
    """
    request, updates = session.request, session.updates
    if updates is None or request.recipe.parts.whole_batch:
        return
    state = updates.state
    if state.update or not state.total_updates:
        return
    versions = state.parameter_versions()

    def make_loss() -> LossFunction:
        # A copy, because a loss may count its calls in an attribute of the recipe.
        return loss_at(copy.copy(request.recipe.recipe), 0, updates.order.updates_per_epoch, state.total_updates)

    difference = compare_with_halves(
        state.model,
        make_loss,
        updates.loader,
        state.sizes.micro_batch,
        state.mixed_precision,
        request.device,
        seed=request.recipe.seed,
        poll=request.stop.check,
    )
    state.reset_trained()
    if state.parameter_versions() != versions:
        # The loss changes parameters itself. The checkpoint before the first update has them as they were.
        session.saver.restore(state, allow_inexact=request.allow_inexact)
        difference = None
    session.reports.restart()
    if difference and request.settings.packing == "yes":
        raise UsageError(
            f"packed samples see each other: the loss of the first microbatch is {difference.whole:.6g}, and "
            f"{difference.halves:.6g} for the same samples one by one",
            hint="this model cannot be trained with packed rows: --set packing=no",
        )
    if difference:
        session.record.note(difference.text)
