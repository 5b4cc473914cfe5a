"""The first microbatch of a session's run."""

import copy

from shoestring.recipe.losses import loss_at
from shoestring.training.engine.first_microbatch import FirstMicrobatch
from shoestring.training.engine.update import LossFunction
from shoestring.training.training_session import TrainingSession


def first_microbatch(session: TrainingSession) -> FirstMicrobatch:
    """Return the first microbatch of the run of a session; polling raises SessionOver when the session has to stop."""
    request, updates = session.request, session.updates
    assert updates is not None
    state, updates_per_epoch = updates.state, updates.order.updates_per_epoch

    def make_loss() -> LossFunction:
        return loss_at(copy.copy(request.recipe.recipe), 0, updates_per_epoch, state.total_updates)

    return FirstMicrobatch(
        model=state.model,
        make_loss=make_loss,
        loader=updates.loader,
        micro_batch=state.sizes.micro_batch,
        mixed_precision=state.mixed_precision,
        device=request.device,
        seed=request.recipe.seed,
        poll=request.stop.check,
    )
