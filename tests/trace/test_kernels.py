"""Memory that CUDA's kernels take beside their operators' results."""

import dataclasses

import torch

from shoestring.hardware.catalog import DEVICES
from shoestring.recipe.finding import find
from shoestring.settings import Settings
from shoestring.trace import Tracer
from shoestring.trace.record import Alloc, Free, Op


class Softmax:
    """A linear layer of 16 by 16 in fp16, then softmax in fp32."""

    dtype = torch.float16

    def model(self):
        return torch.nn.Linear(16, 16, bias=False).to(self.dtype)

    def batch(self, size):
        return torch.zeros(size, 16, dtype=self.dtype)

    def loss(self, model, batch):
        return model(batch).softmax(-1, dtype=torch.float32).sum()


class FullSoftmax(Softmax):
    dtype = torch.float32


T4 = DEVICES["t4"]
CPU = dataclasses.replace(T4, compute_capability=None)


def followed(recipe, device=T4):
    with Tracer(find(recipe)) as tracer:
        return tracer.trace(Settings(micro_batch=1024, precision="fp32"), accumulate=1, device=device)


def in_passing(trace):
    """Bytes of what lives for no event but its own end."""
    return [
        trace.storages[first.storage].bytes
        for first, second in zip(trace.events, trace.events[1:], strict=False)
        if isinstance(first, Alloc) and isinstance(second, Free) and first.storage == second.storage
    ]


def test_softmax_reads_fp16_and_writes_fp32_without_a_copy():
    trace = followed(Softmax())
    names = [event.name for event in trace.events if isinstance(event, Op)]
    assert names[: names.index("aten::_softmax") + 1].count("aten::_to_copy") == 0


def test_softmax_backward_makes_a_product_that_is_gone_at_once():
    for device, products in ((T4, 2), (CPU, 0)):
        assert in_passing(followed(FullSoftmax(), device)).count(1024 * 16 * 4) == products


class LogSumExp(Softmax):
    """Its result is a number for each row; the copy it is made from is all of what goes in."""

    dtype = torch.float32

    def loss(self, model, batch):
        return model(batch).logsumexp(-1).sum()


def test_logsumexp_makes_a_copy_in_passing():
    for device, copies in ((T4, 2), (CPU, 0)):
        assert in_passing(followed(LogSumExp(), device)).count(1024 * 16 * 4) == copies
