"""Out-of-memory during training: what recovers from it, and the error when no fallback is left."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from shoestring.engine.recovery import OutOfMemory, Recovering
from shoestring.engine.state import State, TrainingState
from shoestring.errors import RunError
from shoestring.hardware.catalog import DEVICES
from shoestring.session.stored import StoredPlan
from shoestring.techniques.fallbacks import Phase, Step, next_step
from shoestring.train.record import Record
from shoestring.train.request import SessionRequest
from shoestring.units import bytes_text


def recovering_update(state: TrainingState, request: SessionRequest, record: Record) -> Recovering:
    """Makes an update again on smaller microbatches, then with the other fallbacks; then it is an error."""

    def smaller(failure: str) -> str:
        # The smallest microbatch was tried.
        least = min(state.sizes.micro_batch, state.limits().least_micro_batch)
        state.sizes = replace(state.sizes, micro_batch=least)
        step = fallback("update", state, request, failure)
        state.resize(step.sizes)
        return step.description

    return Recovering(
        state.model,
        state.optimizer,
        state.mixed_precision,
        on_out_of_memory=partial(_recorded, record, state, "update"),
        fallback=smaller,
    )


def recovering_evaluation(state: State, record: Record) -> Recovering:
    """Makes an evaluation again on smaller batches."""
    return Recovering(
        state.model, None, state.mixed_precision, on_out_of_memory=partial(_recorded, record, state, "evaluation")
    )


def fallback(phase: Phase, state: State, request: SessionRequest, failure: str) -> Step:
    """The next fallback from the sizes in force.

    Raises RunError, saying what takes the memory, if nothing is left to try.
    """
    step = next_step(phase, state.sizes, state.limits())
    if step is None:
        raise does_not_fit(state, failure, request.run.plan(), request.device)
    return step


def _recorded(record: Record, state: State, during: Phase, event: OutOfMemory) -> None:
    record.out_of_memory(during, event, update=state.update)


def does_not_fit(state: State, failure: str, plan: StoredPlan | None, device: torch.device) -> RunError:
    """The error when nothing is left to try: what takes the memory, and what would fit."""
    again = " and activations computed again" if state.sizes.checkpointing == "full" else ""
    sizes = standing(state)
    problems = [f"{name}: {bytes_text(size)}, whatever the microbatch" for name, size in sizes.items() if size]
    planned = plan.planned_memory if plan else {}
    problems += [
        f"planned for microbatch {planned.get('settings', {}).get('micro_batch')}: {each['name']} "
        f"{bytes_text(each['bytes'])}"
        for each in sorted(planned.get("parts", []), key=lambda each: -int(each["bytes"]))[:3]
    ]
    here = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    if here:
        taken = torch.cuda.max_memory_reserved(device)
        problems.append(f"the GPU has {bytes_text(here)}, of which torch took {bytes_text(taken)}")
    return RunError(
        f"out of memory with the smallest microbatch{again}: {failure}",
        problems=problems,
        hint=_hint(here),
    )


def standing(state: State) -> dict[str, int]:
    """Bytes that are there in every update, by what they are."""
    parameters = list(state.model.parameters())
    return {
        "weights": sum(each.nbytes for each in parameters),
        "gradients": sum(each.nbytes for each in parameters if each.requires_grad),
        "optimizer states": sum(
            value.nbytes
            for values in (state.optimizer.state.values() if state.optimizer else ())
            for value in values.values()
            if isinstance(value, torch.Tensor)
        ),
        "buffers": sum(each.nbytes for each in state.model.buffers()),
    }


def _hint(memory_bytes: int) -> str:
    smaller = "shorter samples, a smaller model, or LoRA"
    larger = sorted(
        (each.memory_bytes, each.title) for each in DEVICES.values() if 0 < memory_bytes < each.memory_bytes
    )
    if not larger:
        return f"{smaller}; shoestring plan says what would fit"
    return f"{smaller}; or a GPU with more memory, {larger[0][1]} ({bytes_text(larger[0][0])}) the next one up"
