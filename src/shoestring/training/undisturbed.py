"""Computations with the model of a run on which nothing of the run depends."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TypeVar

import torch

from shoestring.training.data.generators import preserved_generators
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.engine.buffers import BufferBackup
from shoestring.training.engine.evaluation_mode import evaluation_mode
from shoestring.training.engine.memory import Failure, catch_out_of_memory, free_unused_memory
from shoestring.training.training_session import TrainingSession

Result = TypeVar("Result")


def compute_undisturbed(
    session: TrainingSession,
    kind: str,
    compute: Callable[[], Result],
    *,
    weights: AbstractContextManager[object] | None = None,
) -> Result | Failure:
    """Return the result of `compute` in evaluation mode, without gradients, or a Failure without memory for it.

    The model, its buffers and all random numbers are as before afterwards. The computation is seeded by its `kind`, and
    has the weights within the context `weights`, by default the model's.

    Raises what `compute` and `weights` raise, and SessionOver if the session has to stop meanwhile.
    """
    state, request = session.state, session.request
    device = request.device
    backup = BufferBackup(state.model, complete=True)
    trained = {parameter: parameter.requires_grad for parameter in state.model.parameters()}

    def attempt() -> Result:
        with ExitStack() as stack:
            stack.enter_context(preserved_generators())
            stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
            stack.enter_context(weights or nullcontext())
            backup.save()
            stack.callback(backup.restore)
            stack.enter_context(evaluation_mode(state.model))
            stack.enter_context(torch.no_grad())
            stack.enter_context(state.mixed_precision.autocast())
            seed_all(derive(request.recipe.seed, kind))
            stack.enter_context(request.stop.interrupting())
            return compute()

    try:
        return catch_out_of_memory(attempt)
    finally:
        for parameter, is_trained in trained.items():
            parameter.requires_grad_(is_trained)
        if device.type == "cuda":  # the blocks of a growing cache would fragment the memory of the updates
            free_unused_memory()
