"""Before the first update of a run in fp16: the modules that overflow are found, stored with the run, and compute in
fp32 from then on.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch

from shoestring.base.errors import UsageError
from shoestring.base.units import plural
from shoestring.techniques import fp32_modules
from shoestring.training.engine.overflow import Overflow, find_overflow
from shoestring.training.engine.parallel.default_group import without_default_group
from shoestring.training.first_microbatch import first_microbatch
from shoestring.training.processes.steps import shared
from shoestring.training.stored_settings import store_settings
from shoestring.training.training_session import TrainingSession


def mend_overflow(session: TrainingSession, rebuild: Callable[[], TrainingSession]) -> TrainingSession:
    """Return the session of a new run, before it begins, with the modules in fp32 that overflow in fp16.

    `rebuild` builds the session again: a loss that changes parameters itself has changed them here.

    Raises SessionOver when the session has to stop, and UsageError if the model overflows whichever modules are in
    fp32.
    """
    request, updates = session.request, session.updates
    if updates is None or not updates.state.total_updates or not _computes_in_fp16(session):
        return session
    if not session.processes.has_whole_weights:
        sharding = f"sharding={request.settings.sharding}"
        note = f"{sharding}: whether the model overflows in fp16 was not tried, because no GPU has all of its weights"
        return replace(session, notes=(*session.notes, note))
    versions = updates.state.parameter_versions()
    overflow = _find(session)
    updates.state.reset_trained()
    if session.processes.is_any(lambda: updates.state.parameter_versions() != versions):
        session = rebuild()
    if overflow is None:
        return session
    return _computing_in_fp32(session, Overflow(**overflow))


def _computes_in_fp16(session: TrainingSession) -> bool:
    state = session.state
    return state.mixed_precision.name == "fp16" or any(
        parameter.dtype == torch.float16 for parameter in state.model.parameters()
    )


@shared  # the other processes have the same weights, and the samples of the first one decide for all of them
@without_default_group()
def _find(session: TrainingSession) -> dict[str, Any] | None:
    """Return the fields of what overflows, as JSON; None if nothing does."""
    overflow = find_overflow(first_microbatch(session))
    if overflow and not overflow.modules:
        raise _refusal(session, overflow)
    return asdict(overflow) if overflow else None


def _refusal(session: TrainingSession, overflow: Overflow) -> UsageError:
    stored = session.request.recipe.options.get("weights")
    weights = " --set weights=fp32" if stored == "fp16" else ""
    return UsageError(
        f"the model overflows in fp16, whose largest number is 65,504: {overflow.place} is not finite",
        problems=[
            f"the loss of {_samples(overflow)} is {overflow.fp16_loss:.6g} in fp16 and "
            f"{overflow.fp32_loss:.6g} in fp32",
            "computing the modules with such values in fp32 (fp32_modules) does not mend it",
        ],
        hint=f"train another run (--run) with --set precision=fp32{weights}; on a GPU with bf16 units, precision=bf16",
    )


def _computing_in_fp32(session: TrainingSession, overflow: Overflow) -> TrainingSession:
    """Return the session with the modules that overflow in fp32, and store them in the plan of the run."""
    request, model = session.request, session.state.model
    known = fp32_modules.find(model, request.settings.fp32_modules)
    setting = fp32_modules.as_setting(model, (*known, *overflow.modules))
    fp32_modules.apply(model, setting)
    session.saver.add_to_environment(fp32_modules=setting)
    # No checkpoint exists yet: after a kill before this, the next session finds the same modules.
    store_settings(request, {"fp32_modules": setting})
    note = (
        f"the model overflows in fp16: {overflow.place} is not finite, so {plural(len(overflow.modules), 'module')} "
        f"will compute in fp32, more slowly (fp32_modules={setting}); the loss of "
        f"{_samples(overflow)} is then {overflow.fp16_loss:.6g}, and {overflow.fp32_loss:.6g} in fp32"
    )
    settings = request.settings.replace(fp32_modules=setting)
    return replace(session, request=replace(request, settings=settings), notes=(*session.notes, note))


def _samples(overflow: Overflow) -> str:
    return "the first sample" if overflow.samples == 1 else f"the first {overflow.samples} samples"
