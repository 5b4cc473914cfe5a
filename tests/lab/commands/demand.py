"""Memory that a GPU's allocator is asked for and given back, without values: genuine out-of-memory in little time."""

import torch

from shoestring.base.units import GIB
from tests.integrations.test_splitting import Killed


def ask_for(gib):
    """Have so many GiB at the same time for a moment. Raises torch's error if the GPU has less."""
    blocks = []  # of a GiB, because a smaller tensor in the only free block would be enough to fail
    try:
        for _ in range(gib):
            blocks.append(torch.cuda.caching_allocator_alloc(GIB))
    finally:
        for block in blocks:
            torch.cuda.caching_allocator_delete(block)


class Demand:
    """What a model asks the GPU's allocator for, in each forward or backward, and where its process is killed."""

    def __init__(self, gib_per_sample=0, *, where="forward", kill_at=None):
        self.gib_per_sample, self.where, self.kill_at = gib_per_sample, where, kill_at
        self.forwards = 0

    def limit(self, model):
        """Register the demand of `model`, and return it."""
        model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        return model

    def _before_forward(self, model, args, inputs):
        if not torch.is_grad_enabled():
            return
        self.forwards += 1
        if self.forwards == self.kill_at:
            raise Killed
        samples = len(next(value for value in (*args, *inputs.values()) if isinstance(value, torch.Tensor)))
        if self.where == "forward":
            self._ask_for(samples)
        else:  # when the gradients of the layers above are made, and the first one's is not
            handle = next(model.parameters()).register_hook(lambda _: (handle.remove(), self._ask_for(samples))[1])

    def _ask_for(self, samples):
        ask_for(samples * self.gib_per_sample)
