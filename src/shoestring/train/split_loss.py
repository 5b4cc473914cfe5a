"""The report of a loss that changes with the microbatch, before the first update of a run."""

from shoestring.engine.halves import compare_with_halves
from shoestring.recipe.contract import loss_at
from shoestring.train.session import TrainingSession


def report_split_loss(session: TrainingSession) -> None:
    """Note if the loss of the first microbatch is not that of its halves, unless no update is ever split.

    Raises SessionOver when the session has to stop.
    """
    state, request, updates = session.state, session.request, session.updates
    if updates is None or state.update or not state.total_updates or request.recipe.parts.whole_batch:
        return
    difference = compare_with_halves(
        state.model,
        loss_at(request.recipe.recipe, 0, updates.order.updates_per_epoch, state.total_updates),
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
