"""What else makes room on a live model when smaller microbatches do not, and the error when nothing does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from shoestring.engine.recovery import Recovering, halved
from shoestring.engine.state import TrainingState
from shoestring.errors import QuestionError, RunError
from shoestring.hardware.catalog import DEVICES
from shoestring.session.directory import RunDirectory
from shoestring.techniques import checkpointing, kernels
from shoestring.train.record import Record
from shoestring.units import bytes_text


def recovering_update(
    state: TrainingState, recipe: object, run: RunDirectory, device: torch.device, record: Record
) -> Recovering:
    """For updates: where the smallest microbatch does not fit activations are computed again, then it is an error."""

    def otherwise(failure: str) -> str:
        if done := compute_again(state, recipe):
            return done
        raise does_not_fit(state, failure, run.plan(), device)

    return _recovering("update", state, record, otherwise)


def recovering_evaluation(state: TrainingState, record: Record) -> Recovering:
    """For evaluations, which keep no activations that could be computed again."""
    return _recovering("evaluation", state, record, lambda _: "")


def _recovering(during: str, state: TrainingState, record: Record, otherwise: Callable[[str], str]) -> Recovering:
    return Recovering(
        state.model,
        state.optimizer,
        state.arithmetic,
        told=lambda event: record.out_of_memory(during, event, update=state.update),
        otherwise=otherwise,
    )


def compute_again(state: TrainingState, recipe: object) -> str:
    """Have every block's activations computed again in backward; empty where they are, or where there are no blocks."""
    if state.fit.checkpointing == "full":
        return ""
    try:
        count = checkpointing.apply(state.model, recipe, "full")
    except QuestionError:
        return ""
    state.fit = dataclasses.replace(state.fit, checkpointing="full")
    _uncaptured(state)
    return f"activations of all {count} blocks computed again in backward"


def smaller_step(state: TrainingState, recipe: object) -> str:
    """Make room for the optimizer's step: one tensor after another, then a smaller microbatch, then `compute_again`."""
    if any(group.get("foreach") or group.get("fused") for group in state.optimizer.param_groups):
        kernels.choose(state.optimizer, "for-loop")
        state.fit = dataclasses.replace(state.fit, optimizer_kernel="for-loop")
        return "the optimizer goes from tensor to tensor"
    smaller = halved(state.fit.micro_batch, state.model)
    if smaller < state.fit.micro_batch:
        state.fit = dataclasses.replace(state.fit, micro_batch=smaller)
        return f"microbatch {smaller}"
    return compute_again(state, recipe)


def apply(state: TrainingState, recipe: object) -> None:
    """Do to a model that was built from the settings what its run has learnt, and to an optimizer that was restored."""
    if state.fit.checkpointing == "full":
        checkpointing.apply(state.model, recipe, "full")
        _uncaptured(state)
    if state.fit.optimizer_kernel == "for-loop":
        kernels.choose(state.optimizer, "for-loop")


def _uncaptured(state: TrainingState) -> None:
    """A graph cannot ask for the state of random numbers, as computing again does; the same kernels run without it."""
    state.captured = None


def does_not_fit(state: TrainingState, failure: str, plan: dict[str, Any] | None, device: torch.device) -> RunError:
    """The error when nothing is left to try: what takes the memory, and what would fit.

    `plan` is the run's plan.json.
    """
    again = " and activations computed again" if state.fit.checkpointing == "full" else ""
    sizes = standing(state)
    problems = [f"{name}: {bytes_text(size)}, whatever the microbatch" for name, size in sizes.items() if size]
    planned = (plan or {}).get("plan", {}).get("memory", {})
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


def standing(state: TrainingState) -> dict[str, int]:
    """Bytes that are there in every update, by what they are."""
    parameters = list(state.model.parameters())
    return {
        "weights": sum(each.nbytes for each in parameters),
        "gradients": sum(each.nbytes for each in parameters if each.requires_grad),
        "optimizer states": sum(
            value.nbytes
            for values in state.optimizer.state.values()
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
