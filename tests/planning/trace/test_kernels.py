"""Memory that CUDA's kernels allocate in addition to their operators' results."""

import dataclasses

import torch

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.trace import Tracer
from shoestring.planning.trace.record import Alloc, Free, Op
from shoestring.recipe.finding import find


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


def trace_recipe(recipe, device=T4):
    with Tracer(find(recipe)) as tracer:
        return tracer.trace(Settings(micro_batch=1024, precision="fp32"), accumulate=1, device=device)


def scratch_sizes(trace):
    """Return the bytes of storages that are allocated for an operator and freed directly after it."""
    sizes, allocated, has_run = [], set(), False
    for event in trace.events:
        match event:
            case Alloc(storage):
                allocated = {storage} if has_run else allocated | {storage}
                has_run = False
            case Free(storage) if storage in allocated:
                sizes.append(trace.storages[storage].bytes)
            case Op():
                allocated, has_run = set() if has_run else allocated, True
    return sizes


def test_softmax_reads_fp16_without_a_copy():
    trace = trace_recipe(Softmax())
    names = [event.name for event in trace.events if isinstance(event, Op)]
    assert names[: names.index("aten::_softmax") + 1].count("aten::_to_copy") == 0


def test_softmax_backward_has_a_temporary_product():
    for device, products in ((T4, 2), (CPU, 0)):
        assert scratch_sizes(trace_recipe(FullSoftmax(), device)).count(1024 * 16 * 4) == products


class LogSumExp(Softmax):
    """A log-sum-exp, whose result has a number for each row, while its temporary copy has all inputs."""

    dtype = torch.float32

    def loss(self, model, batch):
        return model(batch).logsumexp(-1).sum()


def test_logsumexp_has_a_temporary_copy():
    for device, copies in ((T4, 2), (CPU, 0)):
        assert scratch_sizes(trace_recipe(LogSumExp(), device)).count(1024 * 16 * 4) == copies
