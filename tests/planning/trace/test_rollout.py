from collections.abc import Iterator

import torch
from torch import Tensor, nn

from shoestring.base.settings import Precision, Settings
from shoestring.hardware.targets import find
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Op, Phase, Trace
from shoestring.recipe import finding

WIDTH = 256


class Writing:
    """A recipe whose rollout updates a cache in steps; the child asserts the modes of the model."""

    frozen = False

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, WIDTH)

    def loss(self, model: nn.Sequential, batch: Tensor) -> Tensor:
        assert model.training and model[1].training != self.frozen, "modes as they were before the rollout"
        model[1].eval()
        self.frozen = True
        loss: Tensor = model(batch).mean()
        return loss

    def rollout(self, model: nn.Module, batch: Tensor) -> Iterator[Tensor]:
        assert not model.training and not torch.is_grad_enabled()
        cache = model(batch)
        yield cache
        for _ in range(2):
            cache = cache + 1
            yield cache


def trace_recipe(recipe: object, precision: Precision, accumulate: int = 3) -> Trace:
    with Tracer(finding.find(recipe)) as tracer:
        settings = Settings(micro_batch=2, precision=precision, checkpointing="no")
        return tracer.trace(settings, accumulate=accumulate, device=find("t4").device)


def test_rollout_covers_all_samples_of_the_update() -> None:
    trace = trace_recipe(Writing(), "fp32")
    assert [x.bytes for x in trace.storages if x.part == "KV cache"] == 2 * 3 * [2 * 3 * WIDTH * 4]


def test_rollout_computes_in_the_settings_precision() -> None:
    trace = trace_recipe(Writing(), "fp16")
    phase, products = "", set()
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event.name
        elif isinstance(event, Op) and phase == "generation" and "mm" in event.name:
            products.add(event.precision)
    assert products == {"fp16"}


def test_recipe_without_rollout_has_no_generation_phase() -> None:
    class Plain(Writing):
        rollout = None  # type: ignore[assignment]

    trace = trace_recipe(Plain(), "fp32")
    assert "generation" not in {event.name for event in trace.events if isinstance(event, Phase)}
