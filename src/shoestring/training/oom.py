"""Recovery from out-of-memory during training, and the error when no fallback is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from shoestring.base.errors import RunError
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import smallest_gpu
from shoestring.recipe.parts import Parts
from shoestring.techniques.fallbacks import STREAM_FURTHER, Phase, Step, next_step
from shoestring.techniques.pipeline.blocks import crossing_of
from shoestring.training.checkpoint.divided import own
from shoestring.training.engine.block_order import CheckedBlockOrder
from shoestring.training.engine.parallel.errors import RanksApartError
from shoestring.training.engine.recovery import WHOLE_BATCH, OutOfMemory, Recovering
from shoestring.training.engine.state import State, TrainingState
from shoestring.training.monitor.events import Event, append
from shoestring.training.monitor.host_memory import describe_memory
from shoestring.training.record import Record
from shoestring.training.request import SessionRequest
from shoestring.training.run_directory.stored import StoredPlan


def recovering_update(
    state: TrainingState, request: SessionRequest, record: Record, block_order: CheckedBlockOrder | None = None
) -> Recovering:
    """Return a `Recovering` for updates: it retries with smaller microbatches, then with the other fallbacks.

    With a `block_order`, in which inputs of blocks are stored for a group of microbatches at once, these are smaller
    groups.
    """

    def stream_further() -> str:
        if not state.sizes.streamed_blocks:
            return ""
        # Processes share the memory of their host, and have to repeat the update in the same way.
        processes = request.processes
        streamable = processes.share(lambda: state.streamable(processes.count))
        step = next_step("update", state.sizes, replace(state.limits(), streamable=streamable))
        if step is None or step.fallback is not STREAM_FURTHER:
            return ""
        state.resize(step.sizes)
        return step.description

    def apply_fallback(failure: str) -> str:
        # The smallest microbatch has failed.
        least = min(state.sizes.micro_batch, state.limits().least_micro_batch)
        state.sizes = replace(state.sizes, micro_batch=least)
        step = fallback("update", state, request, failure, sharing=block_order.sharing if block_order else 0)
        state.resize(step.sizes)
        return step.description

    return Recovering(
        state.model,
        state.optimizer,
        state.mixed_precision,
        on_out_of_memory=partial(_record_out_of_memory, record, state, "update"),
        before_smaller=stream_further,
        fallback=apply_fallback,
        divisible=not state.parts.learning.whole_batch,
        # Of several processes one alone may fail with its samples, and the others would not make another attempt.
        skips_refused=request.shards.count == 1,
    )


def recovering_evaluation(state: State, record: Record, parts: Parts) -> Recovering:
    """Return a `Recovering` for evaluations of a recipe with these `parts`: it retries with smaller batches."""
    return Recovering(
        state.model,
        None,
        state.mixed_precision,
        on_out_of_memory=partial(_record_out_of_memory, record, state, "evaluation"),
        divisible=parts.splits_evaluation,
    )


def fallback(
    phase: Phase, state: State, request: SessionRequest, failure: str, *, size: int | None = None, sharing: int = 0
) -> Step:
    """Return the next fallback from the current sizes, or from another `size` of microbatches.

    So many microbatches were `sharing` each copy of a streamed block.

    Raises RunError, which lists what takes the memory, if no fallback is left.
    """
    sizes, limits = replace(state.sizes, micro_batch=size or state.sizes.micro_batch), state.limits()
    step = next_step(phase, sizes, replace(limits, sharing=sharing))
    if step is None:
        is_whole = request.loaded is not None and request.loaded.parts.learning.whole_batch
        raise does_not_fit(state, failure, request.run.plan(), request.device, is_whole=is_whole)
    return step


def _record_out_of_memory(record: Record, state: State, during: Phase, event: OutOfMemory) -> None:
    record.out_of_memory(during, event, update=state.update)


def record_restart(
    state: State, request: SessionRequest, error: RanksApartError, *, evaluation_batch: int | None = None
) -> None:
    """Record how the processes start again after one has run out of memory while others wait for it.

    Any of them does so if the others cannot. `evaluation_batch` is the size in an evaluation.

    Raises RunError if no fallback is left.
    """
    during: Phase = "evaluation" if evaluation_batch else "update"
    size = evaluation_batch or state.sizes.micro_batch
    step = fallback(during, state, request, error.failure.message, size=size)
    if error.on_all_ranks and not request.processes.is_first:
        return
    sizes = replace(state.sizes, evaluation_batch=step.sizes.micro_batch) if evaluation_batch else step.sizes
    append(
        request.run.events_file,
        "oom",
        update=state.update,
        during=during,
        failure=error.failure.message,
        micro_batch=size,
        done=step.description,
        restart=sizes.json(),
    )


def restarted_sizes(events: Iterable[Event]) -> Mapping[str, Any] | None:
    """Return the sizes with which the processes start again if the last session of `events` has ended in this way."""
    last: Event | None = None
    for event in events:
        if event["event"] in ("session", "oom", "stop"):
            last = event
    sizes = last.get("restart") if last else None
    return sizes if isinstance(sizes, Mapping) else None


def does_not_fit(
    state: State, failure: str, plan: StoredPlan | None, device: torch.device, *, is_whole: bool = False
) -> RunError:
    """Return the error when no fallback is left: what takes the memory, and what would fit.

    `is_whole` is True if the updates of the recipe are never split.
    """
    recomputed = " and activations recomputed" if state.sizes.checkpointing == "full" else ""
    sizes = persistent_bytes(state)
    problems = [f"{name}: {bytes_text(size)}, independent of the microbatch" for name, size in sizes.items() if size]
    problems += describe_memory() if device.type != "cuda" else []
    planned = plan.planned_memory if plan else {}
    problems += [
        f"planned for microbatch {planned.get('settings', {}).get('micro_batch')}: {part['name']} "
        f"{bytes_text(part['bytes'])}"
        for part in sorted(planned.get("parts", []), key=lambda part: -int(part["bytes"]))[:3]
    ]
    gpus = _gpus(state.model, device)
    problems += [
        f"{gpu.name} has {bytes_text(gpu.bytes)}, of which torch reserved {bytes_text(gpu.reserved_bytes)}"
        for gpu in gpus
    ]
    size = WHOLE_BATCH.format(size=state.sizes.micro_batch) if is_whole else "with the smallest microbatch"
    return RunError(
        f"out of memory {size}{recomputed}: {failure}",
        problems=problems,
        hint=_hint(gpus[0].bytes if gpus else 0, is_whole=is_whole),
    )


class _Gpu(NamedTuple):
    """The memory of a GPU, and the most that torch has had of it."""

    name: str
    bytes: int
    reserved_bytes: int


def _gpus(model: nn.Module, device: torch.device) -> list[_Gpu]:
    """Return the GPUs of a session, the one that had the least memory left first; none on a CPU."""
    if device.type != "cuda":
        return []
    crossing = crossing_of(model)
    divided = {crossing.first: "GPU 0", crossing.second: "GPU 1"} if crossing else {}
    gpus = [
        _Gpu(name, torch.cuda.get_device_properties(place).total_memory, torch.cuda.max_memory_reserved(place))
        for place, name in (divided or {device: "the GPU"}).items()
    ]
    return sorted(gpus, key=lambda gpu: gpu.bytes - gpu.reserved_bytes)


def persistent_bytes(state: State) -> dict[str, int]:
    """Return the bytes of the tensors that exist during every update, by kind."""
    parameters = list(state.model.parameters())
    return {
        "weights": sum(own(parameter).nbytes for parameter in parameters),
        "gradients": sum(own(parameter).nbytes for parameter in parameters if parameter.requires_grad),
        "optimizer states": sum(
            own(value).nbytes
            for values in (state.optimizer.state.values() if state.optimizer else ())
            for value in values.values()
            if isinstance(value, torch.Tensor)
        ),
        "averaged weights": sum(own(average).nbytes for average in state.averages.averages.values())
        if state.averages
        else 0,
        "buffers": sum(buffer.nbytes for buffer in state.model.buffers()),
    }


def _hint(gpu_bytes: int, *, is_whole: bool) -> str:
    smaller = "use shorter samples, a smaller model, or LoRA"
    if is_whole:
        smaller = "use a smaller effective_batch (another training result), shorter samples, or a smaller model"
    larger = smallest_gpu(gpu_bytes + 1) if gpu_bytes else None
    if not larger:
        return f"{smaller}; `shoestring plan` shows what would fit"
    return (
        f"{smaller}, or a GPU with more memory: the next larger one is {larger.title} "
        f"({bytes_text(larger.memory_bytes)})"
    )
