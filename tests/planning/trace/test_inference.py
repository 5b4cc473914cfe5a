"""Work without gradients: which casts of weights it makes for each batch, and which operators it has."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Free, Op, Phase, Trace
from shoestring.recipe import finding

WIDTH, ROWS = 256, 2
CAST = WIDTH * WIDTH * 2


class TwoLayers:
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, WIDTH)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).mean()
        return loss


class Resized(TwoLayers):
    """Resizes and pads a picture, for which PyTorch has several operators in deterministic mode."""

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, 1, WIDTH, WIDTH)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        resized = nn.functional.interpolate(batch, scale_factor=0.5, mode="bilinear")
        padded = nn.functional.pad(resized, (1, 1, 1, 1), mode="replicate")
        loss: Tensor = model(padded.flatten(1)[:, :WIDTH]).mean()
        return loss


def trace_of(work: Literal["prediction", "evaluation"], recipe: type[TwoLayers] = TwoLayers) -> Trace:
    with Tracer(finding.find(recipe())) as tracer:
        settings = Settings(micro_batch=ROWS, precision="fp16")
        return tracer.trace_inference(settings, find("t4").device, work=work)


def casts_by_batch(trace: Trace) -> list[list[int]]:
    """Return the number of casts that are alive after each allocation of one, or of a batch's, for each batch."""
    counts: list[list[int]] = []
    alive = 0
    for event in trace.events:
        if isinstance(event, Phase) and event.name in ("forward", "end"):
            counts.append([])
        if isinstance(event, Alloc | Free) and trace.storages[event.storage].bytes == CAST:
            alive += 1 if isinstance(event, Alloc) else -1
            counts[-1].append(alive)
    return counts


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        # An evaluation is one autocast region, which keeps the casts until its end.
        ("evaluation", [[1, 2], [1, 0], []]),
        # Each prediction of a batch is one.
        ("prediction", [[1, 2, 1, 0], [1, 2, 1, 0], []]),
    ],
)
def test_casts_of_weights(work: Literal["prediction", "evaluation"], expected: list[list[int]]) -> None:
    assert casts_by_batch(trace_of(work)) == expected


def test_batch_of_an_evaluation_is_replaced_once_the_next_one_is_on_the_device() -> None:
    trace = trace_of("evaluation")
    batches = [number for number, storage in enumerate(trace.storages) if storage.part == "batch"]
    events = [event for event in trace.events if isinstance(event, Alloc | Free) and event.storage in batches]
    first, second = batches
    assert events == [Alloc(first), Alloc(second), Free(first), Free(second)]


@pytest.mark.parametrize("work", ["prediction", "evaluation"])
def test_operators_are_deterministic_as_in_training(work: Literal["prediction", "evaluation"]) -> None:
    names = {event.name for event in trace_of(work, Resized).events if isinstance(event, Op)}
    assert "aten::_unsafe_index.Tensor" in names and "aten::upsample_bilinear2d" not in names
    assert "aten::replication_pad2d" not in names
