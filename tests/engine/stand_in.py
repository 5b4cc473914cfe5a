"""What captures where there is no GPU: it writes into the same memory at each replay, as a CUDA graph does, and what it
wrote before it was replayed is NaN."""

import weakref

import torch

from shoestring.engine import cuda_graphs
from shoestring.engine.buffers import Buffers
from shoestring.engine.cuda_graphs import CudaGraphs


class StandIn:
    """Captures on a CPU."""

    def __init__(self, model):
        self.model, self.captures, self.replays, self.memory = model, 0, 0, []

    def __call__(self, work):
        self.captures += 1
        buffers = Buffers(self.model)
        buffers.keep()
        kept = work()
        buffers.restore()
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters]
        tensors = [*filter(torch.is_tensor, kept), *(each for each in gradients if each is not None)]
        for tensor in tensors:
            tensor.fill_(torch.nan)
        self.memory += map(weakref.ref, tensors)

        def replay():
            self.replays += 1
            held = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None
            found = work()
            new = [*filter(torch.is_tensor, found), *(each.grad for each in parameters if each.grad is not None)]
            for old, tensor in zip(tensors, new, strict=True):
                old.copy_(tensor)
            for parameter, gradient in zip(parameters, held, strict=True):
                parameter.grad = gradient

        return kept, replay


def instead_of_cuda(monkeypatch):
    """Each model that is built from here on is captured by a stand-in; returns them, a list that grows."""
    stand_ins = []

    def of(model, settings, device):
        stand_ins.append(StandIn(model))
        return CudaGraphs(model, stand_ins[-1])

    monkeypatch.setattr(cuda_graphs, "of", of)
    return stand_ins
