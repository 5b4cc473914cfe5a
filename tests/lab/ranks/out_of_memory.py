"""Sessions in which a genuine allocation fails on one rank, at a place of an update or of an evaluation.

The driver's processes need PYTORCH_NO_CUDA_MEMORY_CACHING=1: every tensor is an allocation of its own then.
"""

import ctypes

import torch
from torch import nn

from shoestring.training.engine.parallel import ranks
from shoestring.training.engine.parallel.buffers import ShardBuffers
from tests.lab.ranks import recipes
from tests.lab.ranks.training import rank_and_size, train


def fail_segments(first, count=1):
    """Let allocations fail, beginning with number `first`; none with 0."""
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).split('.')[0]}")
    runtime.simulator_fail_at.argtypes = [ctypes.c_uint64] * 2
    runtime.simulator_fail_at(first, count)


class Injection:
    """The place where this process runs out of memory, after its loss number `remaining`."""

    place, remaining, is_armed = "", 0, False

    @classmethod
    def count_loss(cls, is_counted):
        fail_segments(0, 0)
        cls.remaining -= is_counted
        cls.is_armed = is_counted and cls.remaining == 0

    @classmethod
    def reach(cls, place):
        if cls.is_armed and place == cls.place:
            cls.is_armed = False
            fail_segments(1)


class Failing(recipes.Text):
    """Runs out of memory at the place of the `Injection`."""

    def model(self):
        model = super().model()
        model.register_buffer("batches", torch.zeros(()))
        model.layers[1].register_forward_pre_hook(lambda *_: Injection.reach("block"))
        return model

    def loss(self, model, batch):
        # The comparison of a microbatch with its halves computes losses in training without gradients.
        Injection.count_loss(torch.is_grad_enabled() if Injection.place != "evaluation" else not model.training)
        Injection.reach("evaluation")
        Injection.reach("forward")
        model.batches += model.training  # which the first rank sends to the others
        loss, weight = super().loss(model, batch)
        if loss.requires_grad:
            loss.register_hook(lambda _: Injection.reach("backward"))
        return loss, weight

    def optimizer(self, model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        _call_before(optimizer, "step", lambda: Injection.reach("step"))
        return optimizer


def train_failing(device, run, values, place, at, failing_ranks):
    """Run one session, in which these ranks run out of memory at the place."""
    Injection.place, Injection.remaining = place if rank_and_size()[0] in failing_ranks else "", at
    ranks._PATIENCE_SECONDS = 0.5
    _call_before(ShardBuffers, "end_update", lambda: Injection.reach("exchange"))
    _call_before(nn.utils, "clip_grad_norm_", lambda: Injection.reach("clipping"))
    return train(device, Failing(), run, values)


def _call_before(owner, name, act):
    function = getattr(owner, name)

    def replacement(*arguments, **keywords):
        act()
        return function(*arguments, **keywords)

    setattr(owner, name, replacement)
