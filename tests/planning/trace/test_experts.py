"""Grouped products of a mixture of experts, which torch's own shape function has in bf16 only."""

import pytest
import torch
from torch import Tensor, nn

from shoestring.base.errors import TraceError
from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Op, Phase, Trace
from shoestring.recipe import finding

ROWS, GROUPS, INNER, WIDTH = 64, 4, 32, 48


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(GROUPS, INNER, WIDTH))

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        return torch._grouped_mm(rows, self.weight, offs=ends)


class Mixture:
    dtype = torch.float32

    def model(self) -> nn.Module:
        return Experts()

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(size * ROWS, INNER, dtype=self.dtype), torch.zeros(GROUPS, dtype=torch.int32)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Tensor = model(*batch).square().mean()
        return loss


class OtherType(Mixture):
    dtype = torch.float16


def trace_recipe(recipe: Mixture) -> Trace:
    with Tracer(finding.find(recipe)) as tracer:
        settings = Settings(micro_batch=1, precision="fp32", checkpointing="no")
        return tracer.trace(settings, accumulate=1, device=find("t4").device)


def test_grouped_products_in_fp32() -> None:
    trace = trace_recipe(Mixture())
    products, phase = [], ""
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event.name
        elif isinstance(event, Op) and event.name == "aten::_grouped_mm":
            products.append((phase, event.flops))
    flops = 2 * ROWS * INNER * WIDTH
    assert products == [("forward", flops), ("backward", flops)] * 2
    # The gradient has the shape of the weight.
    assert [s.bytes for s in trace.storages if s.part == "gradients"] == [GROUPS * INNER * WIDTH * 4] * 2


def test_grouped_products_of_two_types_are_refused_as_in_training() -> None:
    with pytest.raises(TraceError, match="same dtype"):
        trace_recipe(OtherType())
