"""Work of one rank alone, which must not communicate: the other ranks would never answer."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def without_default_group() -> Iterator[None]:
    """Return a context in which torch.distributed has no default process group, as in a run of one process.

    Metrics libraries and synchronized norms communicate in that group wherever there is one. Groups that are given
    explicitly work as before. The group is that of the whole process: no other thread may need it meanwhile.
    """
    group = dist.group.WORLD if dist.is_available() else None
    if group is None:
        yield
        return
    dist.group.WORLD = None
    try:
        yield
    finally:
        dist.group.WORLD = group
