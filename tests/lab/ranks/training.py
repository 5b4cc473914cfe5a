"""Sessions that ranks run within the process group of the driver."""

from pathlib import Path
from unittest import mock

import torch.distributed as dist

from shoestring.techniques import buckets as sizes
from shoestring.training.engine.parallel import buckets
from shoestring.training.engine.parallel.overlap import Overlap
from shoestring.training.engine.parallel.ranks import PeerLostError
from tests.lab.ranks.recipes import RECIPES, Overflowing
from tests.sessions import session


def rank_and_size():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def train(device, recipe, run, values, *, last_stop="", last_at=0, **options):
    """Run one session, and return its last update. On the last rank it is stopped as `session` does."""
    rank, size = rank_and_size()
    stops = {"stop": last_stop, "at": last_at} if rank == size - 1 else {}
    chosen = RECIPES[recipe]() if recipe in RECIPES else recipe
    try:
        return session(chosen, Path(run), values, device=device, **stops, **options).update
    except PeerLostError as error:
        raise SystemExit(error.status) from error


def train_all(device, runs):
    """Run several sessions, one after the other, in the same process group.

    Returns in how many microbatches of each the gradient was not finite on this rank.
    """
    overflows = []
    for arguments in runs:
        before = Overflowing.overflows
        train(device, **arguments)
        overflows.append(Overflowing.overflows - before)
    return overflows


def train_in_small_messages(device, runs):
    """Run several sessions whose gradients are exchanged in messages of at most 512 bytes, and tensors from 1 KiB on
    in pieces. Returns how many messages were started during a backward, and how many after it.
    """
    started, start = {True: 0, False: 0}, Overlap._start_next

    def count(exchange):
        started[exchange._is_watching] += 1
        start(exchange)

    with (
        mock.patch.object(Overlap, "_start_next", count),
        mock.patch.object(sizes, "_OWN_MESSAGE_BYTES", {"cuda": 1024}),
        mock.patch.object(sizes, "BUCKET", 512),
        mock.patch.object(buckets, "BUCKET", 512),
    ):
        train_all(device, runs)
    return [started[True], started[False]]
