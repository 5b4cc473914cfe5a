"""The report of a loss that changes with the microbatch, before the first update of a run."""

import copy

from shoestring.engine.halves import compare_with_halves
from shoestring.engine.update import LossFunction
from shoestring.recipe.losses import loss_at
from shoestring.train.session import TrainingSession


def report_split_loss(session: TrainingSession) -> None:
    """Note if the loss of the first microbatch is not that of its halves, unless no update is ever split.

    Raises SessionOver when the session has to stop.
    """
    state, request, updates = session.state, session.request, session.updates
    if updates is None or state.update or not state.total_updates or request.recipe.parts.whole_batch:
        return

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
    session.reports.restart()
    if difference:
        session.record.note(difference.text)
