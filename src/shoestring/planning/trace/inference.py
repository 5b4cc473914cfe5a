"""Trace a recipe's work without gradients: its predictions, and the rollout before an update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import attention, autocast, determinism, offloading, python_calls, simulated_device
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.record import Event, Storage
from shoestring.planning.trace.recorder import Recorder
from shoestring.recipe.generation import Step
from shoestring.recipe.losses import EVALUATION_HINT, loss_without_stage
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques import adapt, fp32_modules, memory_format, nested

Steps = Callable[[nn.Module, Any], Iterable[Any]]
Work = Literal["prediction", "evaluation", "answers"]


def run(
    recorder: Recorder,
    loaded: LoadedRecipe,
    settings: Settings,
    *,
    work: Work,
    capability: tuple[int, int] | None,
) -> tuple[tuple[Storage, ...], tuple[Event, ...]]:
    """Trace predictions for two batches of `settings.micro_batch` samples, evaluations of them, or answering all
    held-out prompts twice, as forward phases of two updates.

    The steps of a prediction are those of the recipe's `inference` or `rollout`, those of an evaluation of its
    `evaluation_work`, or else the forward pass of its `loss`; those of answers are of its `answers_work`. A
    `capability` of None means a CPU. Raises whatever the recipe's code raises.
    """
    attention.CAPABILITY.set(capability)
    assert settings.micro_batch is not None and settings.precision is not None
    recipe = loaded.recipe
    model = simulated_device.build(lambda: adapt.planned_model(loaded))
    memory_format.apply(model, settings.memory_format)
    batch = recipe.batch(settings.micro_batch)
    steps = _steps(loaded, work)
    with (
        simulated_device.fake_mode(),
        recorder,
        python_calls.counting(recorder.log.count_python_calls),
        memory_format.reshaping_views(settings.memory_format),
        determinism.deterministic_operators() if capability is not None else nullcontext(),
    ):
        recorder.log.mark("model", 0)
        offloading.move(recorder.log, model, loaded.parts, settings.replace(offload="no"))
        fp32_modules.apply(model, settings.fp32_modules)
        recorder.log.label(model.parameters(), "weights")
        recorder.log.label(model.buffers(), "buffers")
        device_batch: Any = None
        with ExitStack() as stack:
            if work == "evaluation":  # which has one autocast region for all batches: it keeps the casts of weights
                stack.enter_context(_inference(model, settings))
            for number in range(2):
                recorder.log.mark("forward", number)
                if work == "evaluation":
                    # The previous batch is replaced once the next one is on the device.
                    device_batch = _move(recorder.log, batch, settings)
                    _run(recorder.log, steps(model, device_batch))
                else:
                    run_steps(recorder.log, steps, model, batch, settings)
            del device_batch
        recorder.log.mark("end", 1)
        return recorder.log.record()


def run_steps(log: EventLog, steps: Steps, model: nn.Module, batch: Any, settings: Settings) -> None:
    """Run the steps in evaluation mode without gradients, with `batch` moved to the simulated device."""
    device_batch = _move(log, batch, settings)
    with _inference(model, settings):
        _run(log, steps(model, device_batch))


@contextmanager
def _inference(model: nn.Module, settings: Settings) -> Iterator[None]:
    """Enter evaluation mode, without gradients, and an autocast region."""
    assert settings.precision is not None
    training = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad(), autocast.region(settings.precision):
        yield
    for module, mode in training.items():
        module.training = mode


def _move(log: EventLog, batch: Any, settings: Settings) -> Any:
    device_batch = simulated_device.move_batch(batch, settings.memory_format)
    log.label(nested.tensors(device_batch), "batch")
    return device_batch


def _run(log: EventLog, steps: Iterable[Any]) -> None:
    """Run the steps, each of which yields the tensors that it keeps for the next one."""
    for step in steps:
        log.label(simulated_device.tensors(step.state if isinstance(step, Step) else step), "KV cache")
        if isinstance(step, Step):
            log.mark_step(step.times)
        # The next step replaces one tensor after another; a reference here would keep both alive.
        del step


def _steps(loaded: LoadedRecipe, work: Work) -> Steps:
    parts = loaded.parts
    if work == "answers":
        assert parts.evaluation.answers_work
        answers_work = parts.evaluation.answers_work
        return lambda model, _: answers_work(model)
    own_steps = (
        parts.evaluation.evaluation_work if work == "evaluation" else parts.use.inference or parts.learning.rollout
    )
    return own_steps or _forward(loaded.recipe, work)


def _forward(recipe: Any, work: Work) -> Steps:
    hint = "write inference(model, batch), the steps of predict as an iterator, or give the argument a default"
    if work == "evaluation":
        hint = EVALUATION_HINT
    loss = loss_without_stage(recipe, f"{'an' if work == 'evaluation' else 'a'} {work}", hint)

    def steps(model: nn.Module, batch: Any) -> Iterator[None]:
        loss(model, batch)
        yield None

    return steps
