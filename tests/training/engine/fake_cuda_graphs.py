"""A fake capture of CUDA graphs for machines without a GPU.

Like a CUDA graph it writes its results to the same memory at each replay. Before the first replay they are NaN. All
graphs of a capture share a memory pool, which ends with its last graph: a replay may overwrite whatever the others have
written, here with NaN. A replay uses the buffers that the model had at the capture, and its writes are not counted.
"""

import weakref
from contextlib import ExitStack

import torch

from shoestring.training.engine import cuda_graphs
from shoestring.training.engine.buffers import BufferBackup
from shoestring.training.engine.cuda_graphs import CudaGraphs


class FakeCaptures:
    """Returns a `Capture` that runs on a CPU, at each call with a new memory pool; counts captures and replays."""

    def __init__(self, model):
        self.model, self.captures, self.replays, self.memory = model, 0, 0, []

    def __call__(self):
        graphs = []

        def capture(work):
            if graphs and not any(graph() for graph in graphs):
                raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
            result, replay = self._capture(work)
            graphs.append(weakref.ref(replay))
            return result, replay

        return capture

    def _capture(self, work):
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
        captured_buffers = self._buffers()

        def replay():
            self.replays += 1
            for reference in self.memory:
                if (shared := reference()) is not None:
                    shared.fill_(torch.nan)
            previous_gradients, current_buffers = [parameter.grad for parameter in parameters], self._buffers()
            self._set_buffers(captured_buffers)
            for parameter in parameters:
                parameter.grad = None
            with ExitStack() as versions:
                for buffer in captured_buffers.values():
                    versions.enter_context(torch.autograd._unsafe_preserve_version_counter(buffer))
                replayed = work()
            new_gradients = (parameter.grad for parameter in parameters if parameter.grad is not None)
            new_tensors = [*filter(torch.is_tensor, replayed), *new_gradients]
            for tensor, new_tensor in zip(tensors, new_tensors, strict=True):
                tensor.copy_(new_tensor)
            self._set_buffers(current_buffers)
            for parameter, gradient in zip(parameters, previous_gradients, strict=True):
                parameter.grad = gradient

        return result, replay

    def _buffers(self):
        return {
            (module, name): buffer
            for module in self.model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        }

    def _set_buffers(self, buffers):
        for (module, name), buffer in buffers.items():
            setattr(module, name, buffer)


def use_fake_cuda_graphs(monkeypatch):
    """Use fake captures for each model that is built from now on; returns the growing list of them."""
    captures = []

    def build_cuda_graphs(model, settings, device):
        captures.append(FakeCaptures(model))
        return CudaGraphs(model, captures[-1])

    monkeypatch.setattr(cuda_graphs, "build_cuda_graphs", build_cuda_graphs)
    return captures
