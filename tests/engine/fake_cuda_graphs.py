"""A fake capture of CUDA graphs for machines without a GPU.

Like a CUDA graph it writes its results to the same memory at each replay. Before the first replay they are NaN. All
graphs of a capture share a memory pool: a replay may overwrite whatever the others have written, here with NaN.
"""

import weakref

import torch

from shoestring.engine import cuda_graphs
from shoestring.engine.buffers import BufferBackup
from shoestring.engine.cuda_graphs import CudaGraphs


class FakeCapture:
    """A `Capture` that runs on a CPU and counts captures and replays."""

    def __init__(self, model):
        self.model, self.captures, self.replays, self.memory = model, 0, 0, []

    def __call__(self, work):
        self.captures += 1
        buffers = BufferBackup(self.model)
        buffers.save()
        result = work()
        buffers.restore()
        parameters = list(self.model.parameters())
        gradients = [parameter.grad for parameter in parameters]
        tensors = [*filter(torch.is_tensor, result), *(gradient for gradient in gradients if gradient is not None)]
        for tensor in tensors:
            tensor.fill_(torch.nan)
        # The expected weight of a later microbatch is an input, which no graph writes.
        self.memory += [weakref.ref(tensor) for tensor in tensors if tensor is not result.expected]

        def replay():
            self.replays += 1
            for reference in self.memory:
                if (shared := reference()) is not None:
                    shared.fill_(torch.nan)
            previous_gradients = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None
            replayed = work()
            new_gradients = (parameter.grad for parameter in parameters if parameter.grad is not None)
            new_tensors = [*filter(torch.is_tensor, replayed), *new_gradients]
            for tensor, new_tensor in zip(tensors, new_tensors, strict=True):
                tensor.copy_(new_tensor)
            for parameter, gradient in zip(parameters, previous_gradients, strict=True):
                parameter.grad = gradient

        return result, replay


def use_fake_cuda_graphs(monkeypatch):
    """Use a fake capture for each model that is built from now on; returns the growing list of them."""
    captures = []

    def build_cuda_graphs(model, settings, device):
        captures.append(FakeCapture(model))
        return CudaGraphs(model, captures[-1])

    monkeypatch.setattr(cuda_graphs, "build_cuda_graphs", build_cuda_graphs)
    return captures
