"""The memory format of the traced tensors, and of recipes that do not support channels_last."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.planning.planner import plan_with
from shoestring.planning.trace import Tracer
from shoestring.recipe.finding import find

T4 = targets.find("t4")


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


class Strided:
    """A recipe that takes only tensors in channels_last, also gradients and optimizer states."""

    effective_batch = 4
    learning_rate = 0.1

    def model(self) -> nn.Module:
        return nn.Conv2d(3, 5, 3)

    def batch(self, size: int) -> list[Tensor]:
        return [torch.ones(size, 3, 6, 6)]

    def loss(self, model: Any, batch: list[Tensor]) -> Tensor:
        if not (is_channels_last(batch[0]) and is_channels_last(model.weight)):
            raise UsageError("contiguous")
        return model(*batch).mean()


class Viewing(Strided):
    """A recipe that calls `view` on an image."""

    def loss(self, model: Any, batch: list[Tensor]) -> Tensor:
        return model(*batch).mean() + batch[0].view(len(batch[0]), -1).mean()

    def inference(self, model: Any, batch: list[Tensor]) -> Any:
        yield model(*batch).mean() + batch[0].view(len(batch[0]), -1).mean()


def test_the_trace_has_the_format_of_the_settings() -> None:
    settings = Settings(micro_batch=4, precision="fp16", memory_format="channels_last")
    with Tracer(find(Strided())) as tracer:
        trace = tracer.trace(settings, accumulate=1, device=T4.device)
        with pytest.raises(UsageError, match="contiguous"):
            tracer.trace(settings.replace(memory_format="contiguous"), accumulate=1, device=T4.device)
        assert tracer.trace_inference(settings, T4.device).events
    copies = [event for event in trace.events if getattr(event, "name", "").startswith("aten::clone")]
    assert copies[0].bytes == 2 * 4 * 4 * 3 * 6 * 6  # the batch is converted on the device


def test_a_view_that_the_format_does_not_permit_is_one_error_or_a_reason() -> None:
    recipe = find(Viewing())
    message = r"memory_format=channels_last: a view .*test_memory_format.py:\d+ in loss"
    with Tracer(recipe) as tracer:
        plan = functools.partial(plan_with, tracer, recipe, T4, thorough=False, usd_per_hour=None, calibration=None)
        with pytest.raises(UsageError, match=message) as error:
            plan(Settings(memory_format="channels_last"))
        assert "call reshape instead of view" in (error.value.hint or "")
        contiguous = plan(Settings())
        assert contiguous.settings.memory_format == "contiguous"
        assert [reason for reason in contiguous.reasons if "the recipe does not support channels_last: " in reason]
        settings = Settings(micro_batch=4, precision="fp16", memory_format="channels_last")
        assert tracer.trace_inference(settings, T4.device).events  # in predictions views are copies where they must be
