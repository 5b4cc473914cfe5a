"""The processes of a script that a launcher, such as torchrun or `accelerate launch`, has started together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from shoestring.base.errors import UsageError
from shoestring.base.streams import flush, write_messages
from shoestring.training.engine.parallel.errors import PeerLostError
from shoestring.training.engine.parallel.joining import join
from shoestring.training.engine.parallel.launcher import Launcher, end_with_agent
from shoestring.training.engine.parallel.ranks import Ranks


@contextmanager
def joined() -> Iterator[Ranks]:
    """Return a context in which the processes of this script are in torch's process group: its own if it has one.

    If another one ends, this process leaves Python at once, without saving. It also ends when torch's elastic agent,
    which has started it, is killed: the next start of the script must find the run's directory unlocked.

    Raises UsageError if the number of processes is not a power of two.
    """
    if launcher := Launcher.find():
        launcher.require_complete()
        if launcher.size & (launcher.size - 1):
            raise UsageError(
                f"a launcher has started {launcher.size} processes (WORLD_SIZE): the gradients of a power of two of "
                "them are added in a fixed order",
                hint="start 2, 4 or 8 processes",
            )
        end_with_agent()
    if launcher and not dist.is_initialized():
        uses_gpus = torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "").lower() != "true"
        join(torch.device("cuda" if uses_gpus else "cpu"))
    with leaving_after_lost_peer():
        yield Ranks.join()


@contextmanager
def leaving_after_lost_peer() -> Iterator[None]:
    """Leave Python at once if the body finds that another process has ended; no outer context waits for anything."""
    try:
        yield
    except PeerLostError as lost:
        write_messages(str(lost))
        flush()
        os._exit(lost.status)
