"""After an exception within backward FSDP2 computes other gradients, without an error; the reset prevents that."""

from contextlib import suppress

import pytest
import torch
import torch.distributed.fsdp  # before the ranks are forked
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.training.checkpoint.divided import own
from shoestring.training.engine.parallel import fsdp_versions
from shoestring.training.engine.parallel.fully_sharded import shard
from shoestring.training.engine.parallel.ranks import Ranks
from tests.ranks import run_ranks

CPU = torch.device("cpu")


class InterruptedPassError(Exception):
    pass


def gradients(rank, *, resets, fails_in):
    """Return the gradients of a pass that follows one which has failed in backward of a block."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    model = nn.Sequential(nn.Linear(4, 4), *blocks, nn.Linear(4, 1))
    inputs = torch.randn(6, 4)[rank::2]
    divided = shard(model, blocks, Ranks.join(), CPU, reshard_after_forward=True)

    def fail(*_):
        raise InterruptedPassError

    if fails_in is not None:
        handle = blocks[fails_in].register_forward_hook(lambda *args: args[2].register_hook(fail) and None)
        with pytest.raises(InterruptedPassError):
            divided.gathering(model)(inputs).sum().backward()
        handle.remove()
        if resets:
            fsdp_versions.reset(divided._modules)
        model.zero_grad(set_to_none=True)
    divided.gathering(model)(inputs).sum().backward()
    return [None if p.grad is None else own(p.grad).tolist() for p in model.parameters()]


@pytest.mark.skipif(not fsdp_versions.is_supported(), reason="this torch cannot be reset: such runs start again")
def test_reset_after_an_error_in_backward(tmp_path):
    def act(rank):
        right = gradients(rank, resets=False, fails_in=None)
        for block in range(3):
            assert gradients(rank, resets=True, fails_in=block) == right
            with suppress(RuntimeError, UsageError):  # some versions of torch notice some places
                assert gradients(rank, resets=False, fails_in=block) != right

    assert run_ranks(2, act, tmp_path) == [0, 0]
