"""Processes whose trainers fail or end while others are in a collective of the library."""

import pytest
import torch
import torch.distributed as dist

from shoestring.base.errors import RunError
from shoestring.integrations.agreement import Agreement
from shoestring.training.engine.parallel.ranks import PeerLostError, Ranks
from shoestring.training.processes.replicas import Replicas
from tests.ranks import run_ranks

COLLECTIVES = (
    lambda: dist.all_gather_object([None, None], {}),
    lambda: dist.all_reduce(torch.ones(2)),
    lambda: dist.barrier(),
)


def train(agreement, collective, failure):
    """Train with two collectives; a process with a `failure` reaches only the first."""
    with agreement.training():
        collective()
        if failure:
            raise failure
        collective()


def test_collectives_end_with_the_failure_of_another_process(tmp_path):
    def act(rank):
        agreement, barrier = Agreement(Replicas(Ranks.join())), dist.barrier
        for collective in COLLECTIVES:
            error = ValueError("no such row") if rank else None
            kind, message = (ValueError, "^no such row") if rank else (RunError, "^GPU 1: no such row")
            with pytest.raises(kind, match=message):
                train(agreement, collective, error)
            error = RuntimeError("CUDA out of memory") if rank else None
            with pytest.raises(torch.OutOfMemoryError, match=r"^GPU 1: CUDA out of memory"):
                train(agreement, collective, error)
        train(agreement, COLLECTIVES[0], None)
        assert dist.barrier is barrier
        if rank == 0:
            with pytest.raises(PeerLostError):
                train(agreement, COLLECTIVES[0], None)

    assert run_ranks(2, act, tmp_path) == [0, 0]
