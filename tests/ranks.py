"""Functions run by several processes that form a process group of torch.distributed, on the CPU."""

import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist


def start_ranks(size, act, folder):
    """Fork `size` processes that call `act(rank)` within a process group; return their ids."""
    store = folder / f"store-{os.urandom(4).hex()}"
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            _run(rank, size, act, store)
        pids.append(pid)
    return pids


def run_ranks(size, act, folder):
    """Call `act(rank)` in `size` processes and return their exit statuses, negative for a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in start_ranks(size, act, folder)]


def _run(rank, size, act, store):
    status = 1
    try:
        torch.set_num_threads(1)
        if size > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
            )
        act(rank)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
